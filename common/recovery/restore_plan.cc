#include "common/recovery/restore_plan.h"
