#include "common/recovery/restart_budget.h"
