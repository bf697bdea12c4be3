#include "common/recovery/elastic_size.h"
