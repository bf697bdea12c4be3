#include "common/recovery/state_pieces.h"
