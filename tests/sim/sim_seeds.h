// Runs a case for many seeds, and says which one failed and how to see it again.
#pragma once

#include "tests/sim/sim_cluster.h"

namespace muster {

// A number from the environment.
int FromEnvironment(const char* name, int otherwise);
// Whether MUSTER_SIM_SEED asks for a single one.
bool OneSeed();
// How many seeds RunSeeds runs for this count.
int SeedCount(int count);
// Seeds first, first + 1, ... as many as `count`, or as MUSTER_SIM_SEEDS says for a count of 1000;
// the sum of what happened. Stops at the first failure.
SimCluster::Tally RunSeeds(uint32_t first, int count, SimOptions options);

// For cases that say themselves what happens: jobs are submitted within 5 s, nothing goes wrong by
// itself, nobody meddles, no job recovers or has spares.
SimOptions QuietOptions(int num_nodes, int num_jobs);

}  // namespace muster
