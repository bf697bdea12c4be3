#include "worker/model/parameter_init.h"

namespace muster {
namespace {

thread_local bool without_init = false;

}  // namespace

WithoutParameterInit::WithoutParameterInit() : before_(without_init) { without_init = true; }
WithoutParameterInit::~WithoutParameterInit() { without_init = before_; }
bool WithoutParameterInit::active() { return without_init; }

}  // namespace muster
