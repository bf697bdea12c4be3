// Where one unit of a chunk ends and the next one begins: tells hooks (unit_hooks.h) when passes
// come by.
#pragma once

#include <memory>
#include <vector>

#include "worker/model/norm.h"
#include "worker/parallel/unit_hooks.h"

namespace muster {

// Shared with the graphs that call them.
using UnitHookList = std::shared_ptr<const std::vector<UnitHooks*>>;

void CallBeforeForward(const UnitHookList& hooks, int unit);
void CallAfterForward(const UnitHookList& hooks, int unit);
bool AnyClosesUnits(const UnitHookList& hooks);

// `x` with a place in autograd's graph between the units `before` and `after` (-1: none there). A
// backward pass that comes through calls AfterBackward of the latter, then BeforeBackward of the
// former. No copy; `x` as it is where nothing is recorded or there are no hooks.
PendingAdd MarkBorder(const UnitHookList& hooks, const PendingAdd& x, int before, int after);

}  // namespace muster
