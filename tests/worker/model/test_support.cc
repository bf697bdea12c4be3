#include "test_support.h"

#include <cmath>
#include <fstream>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "common/base/check.h"

namespace muster {
namespace {

// The tensors are tiny, and every gtest case is a process of its own in ctest: one thread each.
const bool kOneThread = [] {
  at::set_num_threads(1);
  return true;
}();

at::Generator NewGenerator(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

at::ScalarType TypeNamed(const std::string& name) {
  if (name == "int64") return at::kLong;
  if (name == "float64") return at::kDouble;
  MUSTER_CHECK(name == "float32");
  return at::kFloat;
}

}  // namespace

GptGolden LoadGptGolden(const std::string& name) {
  const std::string stem = std::string(MUSTER_SOURCE_DIR) + "/tests/golden/gpt/gpt_" + name;
  GptGolden golden;
  std::ifstream(stem + ".json") >> golden.document;
  std::ifstream bytes(stem + ".bin", std::ios::binary);
  for (const auto& entry : golden.document["tensors"]) {
    at::Tensor tensor = at::empty(entry["shape"].get<std::vector<int64_t>>(),
                                  TypeNamed(entry["dtype"].get<std::string>()));
    bytes.seekg(entry["offset"].get<int64_t>());
    bytes.read(static_cast<char*>(tensor.data_ptr()),
               static_cast<std::streamsize>(tensor.nbytes()));
    MUSTER_CHECK_MSG(bytes.good(), stem);
    golden.tensors[entry["name"].get<std::string>()] = tensor;
  }
  return golden;
}

TransformerConfig GptGolden::Config() const {
  const auto& c = document["config"];
  TransformerConfig config;
  config.num_layers = c["layers"];
  config.hidden_size = c["hidden"];
  config.ffn_hidden_size = c["ffn"];
  config.num_attention_heads = c["heads"];
  config.num_query_groups = c["groups"];
  config.kv_channels = config.hidden_size / config.num_attention_heads;
  config.max_position_embeddings = c["seq"];
  config.padded_vocab_size = c["vocab"];
  config.position_embedding =
      c["positions"] == "rope" ? PositionEmbedding::kRope : PositionEmbedding::kLearnedAbsolute;
  config.rotary_percent = c["rotary_percent"];
  config.normalization =
      c["norm"] == "RMSNorm" ? Normalization::kRmsNorm : Normalization::kLayerNorm;
  config.norm_epsilon = c["eps"];
  config.swiglu = c["swiglu"];
  config.add_bias_linear = c["bias"];
  config.untie_embeddings_and_output_weights = !c["tied"].get<bool>();
  config.attention_dropout = config.hidden_dropout = 0;
  return config;
}

Batch GptGolden::MakeBatch() const {
  Batch batch;
  batch.tokens = at("batch.tokens");
  batch.labels = at("batch.labels");
  batch.loss_mask = at::ones(batch.tokens.sizes());
  batch.position_ids =
      at::arange(batch.tokens.size(1), at::kLong).expand(batch.tokens.sizes()).contiguous();
  return batch;
}

RngTracker MakeRng(int64_t seed) {
  return *RngTracker::Create(seed, {}, /*data_parallel_random_init=*/false, /*cuda=*/false);
}

std::unique_ptr<GptModel> MakeModel(const TransformerConfig& config, at::ScalarType dtype,
                                    int64_t seed) {
  RngTracker rng = MakeRng(seed);
  return std::make_unique<GptModel>(config, GptModel::Placement{.num_layers = config.num_layers},
                                    GptModel::Groups{}, rng, at::kCPU, dtype);
}

std::unique_ptr<GptModel> MakeGoldenModel(const GptGolden& golden, at::ScalarType dtype) {
  at::NoGradGuard no_grad;
  auto model = MakeModel(golden.Config(), dtype);
  for (const ParameterPtr& parameter : model->parameters()) {
    parameter->data.copy_(golden.at("param." + parameter->name));
  }
  return model;
}

void CopyParameters(const std::vector<ParameterPtr>& from, const std::vector<ParameterPtr>& to) {
  at::NoGradGuard no_grad;
  std::map<std::string, ParameterPtr> by_name;
  for (const ParameterPtr& parameter : from) by_name[parameter->name] = parameter;
  for (const ParameterPtr& parameter : to) {
    std::string name = parameter->name;
    if (!by_name.contains(name)) name = "embedding.word_embeddings.weight";  // tied copy
    parameter->data.copy_(by_name.at(name)->data);
  }
}

TransformerConfig TinyConfig() {
  TransformerConfig config;
  config.num_layers = 2;
  config.hidden_size = 32;
  config.ffn_hidden_size = 64;
  config.num_attention_heads = config.num_query_groups = 4;
  config.kv_channels = 8;
  config.max_position_embeddings = 16;
  config.padded_vocab_size = 64;
  config.attention_dropout = config.hidden_dropout = 0;
  return config;
}

Batch RandomBatch(const TransformerConfig& config, int64_t batch, int64_t seq, uint64_t seed) {
  const at::Tensor data = at::randint(0, config.padded_vocab_size, {batch, seq + 1},
                                      NewGenerator(seed), at::TensorOptions().dtype(at::kLong));
  Batch out;
  out.tokens = data.narrow(1, 0, seq).contiguous();
  out.labels = data.narrow(1, 1, seq).contiguous();
  out.loss_mask = at::ones({batch, seq});
  out.position_ids = at::arange(seq, at::kLong).expand({batch, seq}).contiguous();
  return out;
}

void AttachMainGrads(const std::vector<ParameterPtr>& parameters, at::ScalarType dtype) {
  for (const ParameterPtr& parameter : parameters) {
    parameter->main_grad = at::full(parameter->data.sizes(), std::nan(""), dtype);
    parameter->main_grad_is_zero = true;
  }
}

at::Tensor RandomLeaf(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  return at::rand(sizes, NewGenerator(seed), at::TensorOptions().dtype(dtype))
      .mul_(2)
      .sub_(1)
      .set_requires_grad(true);
}

ParameterPtr RandomParameter(at::IntArrayRef sizes, uint64_t seed) {
  auto parameter = std::make_shared<Parameter>();
  parameter->name = "random";
  parameter->data = RandomLeaf(sizes, seed);
  return parameter;
}

double GradientError(const std::vector<at::Tensor>& leaves,
                     const std::function<at::Tensor()>& output) {
  const at::Tensor first = output();
  const at::Tensor weights = RandomLeaf(first.sizes(), 99).detach();
  for (const at::Tensor& leaf : leaves) leaf.mutable_grad() = at::Tensor();
  (first * weights).sum().backward();
  at::NoGradGuard no_grad;
  const auto value = [&] { return (output() * weights).sum().item<double>(); };
  constexpr double kStep = 1e-5;
  double worst = 0;
  for (const at::Tensor& leaf : leaves) {
    if (!leaf.grad().defined()) return std::numeric_limits<double>::infinity();
    const at::Tensor grad = leaf.grad().contiguous();
    double* data = leaf.data_ptr<double>();
    for (int64_t i = 0; i < leaf.numel(); ++i) {
      const double saved = data[i];
      data[i] = saved + kStep;
      const double up = value();
      data[i] = saved - kStep;
      const double down = value();
      data[i] = saved;
      const double numeric = (up - down) / (2 * kStep);
      const double error =
          std::abs(grad.const_data_ptr<double>()[i] - numeric) / std::max(1.0, std::abs(numeric));
      if (!(error <= worst)) worst = error;  // a NaN stays
    }
  }
  return worst;
}

double MaxDifference(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 && a.sizes() == b.sizes()) return 0;
  const double difference =
      (a.detach().to(at::kDouble) - b.detach().to(at::kDouble)).abs().max().item<double>();
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

}  // namespace muster
