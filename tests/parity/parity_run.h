// Trains one small GPT in any layout, ranks as threads, and compares two runs: losses, gradient
// norms, evaluations and final weights. Free of torch's headers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/control/messages.h"
#include "tests/worker/train/train_test_util.h"

namespace muster {

// What a run produced.
struct Curve {
  std::vector<StepMessage> steps;
  std::vector<EvaluationMessage> evaluations;
  std::map<std::string, std::vector<double>>
      weights;  // by name, whole tensors; empty after a failure
};

struct Bounds {
  double loss = 0, grad_norm = 0;  // |a - b| <= bound * max(1, |b|)
  double weight = 0;               // |a - b| <= bound
};
// design: losses to 1e-5 over ten steps, weights to 0.01 lr a step.
Bounds Fp64Bounds();
Bounds Fp32Bounds();
inline Bounds SameBits() { return {}; }

// A model with `model` settings on top of the matrix's (4 layers, hidden 32, 4 heads, sequence 16,
// 512 words, 8 samples a batch in microbatches of 1, ten iterations with two evaluations, AdamW
// with clipping), and weights that two iterations of one process have given it: every run starts
// from these.
class ParityModel {
 public:
  explicit ParityModel(const Settings& model);
  // One attempt with these settings more. Failures of ranks are the test's failures.
  Curve Run(const Settings& layout);
  std::string Spec(const Settings& layout) const;
  const TrainTestRoot& root() const { return root_; }

 private:
  TrainTestRoot root_;
  Settings settings_;
  int num_runs_ = 0;
};

void ExpectSame(const Curve& a, const Curve& b, const Bounds& bounds);

// Layout by layout against one process, in fp64 and in fp32.
struct Layout {
  const char* name;
  Settings settings;
};
void ExpectParity(const Settings& model, const std::vector<Layout>& layouts);

}  // namespace muster
