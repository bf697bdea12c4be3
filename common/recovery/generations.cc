#include "common/recovery/generations.h"
