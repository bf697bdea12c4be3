// Jobs of one small GPT in several layouts through the real programs (muster local: coordinator,
// agents, trainers), all from the same weights, and their numbers beside those of one process.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/integration/process.h"

namespace muster {

struct RealLayout {
  const char* name;
  int world_size = 1;
  nlohmann::json parallel;  // fields of the section
};
// Of the parity matrix's; at most four ranks.
const std::vector<RealLayout>& RealLayouts();
// The same for a model with experts, whose embeddings are not tied, and that model's fields.
const std::vector<RealLayout>& RealExpertLayouts();
nlohmann::json ExpertModel();

class LayoutRuns {
 public:
  // `device`: "cpu" (gloo and shared memory) or "cuda" (NCCL). `training`, `model`: fields of the
  // sections, such as fp64.
  LayoutRuns(const std::string& device, const nlohmann::json& training,
             const nlohmann::json& model = nlohmann::json::object());

  // By iteration: the metrics records of ten steps.
  using Records = std::map<int64_t, nlohmann::json>;
  Records Run(const RealLayout& layout);
  // Losses and gradient norms of all ten steps within `bound` (relative, of at least 1).
  void ExpectSame(const Records& ours, const Records& one, double bound);
  const TempFolder& folder() const { return folder_; }

 private:
  nlohmann::json Spec(const RealLayout& layout) const;
  Records RunSpec(const std::string& name, const nlohmann::json& spec);

  const TempFolder folder_;
  const std::string device_;
  const nlohmann::json training_, model_;
};

}  // namespace muster
