// Which saved elements fill which tensor when the layout changed. Pure.
#pragma once

#include <cstdint>
#include <functional>

#include "common/ckpt/manifest.h"

namespace muster {

// `count` elements that follow each other in both: from element `source` of the source's data to
// element `target` of the target's (element 0 is the first one that the slice holds).
using CopyRun = std::function<void(int64_t source, int64_t target, int64_t count)>;

// Calls `copy` for every run of elements of one tensor that both slices hold; each common element
// is in exactly one run. Both boxes must have the same number of dims. Returns the elements copied.
int64_t ForEachCommonRun(const SliceBox& source, const SliceBox& target, const CopyRun& copy);

}  // namespace muster
