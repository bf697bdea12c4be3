#include "common/recovery/buddies.h"
