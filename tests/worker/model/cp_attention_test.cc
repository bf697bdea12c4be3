// Attention over a sequence that is spread over ranks, as threads: outputs and gradients are the
// slices of attention to the whole sequence on one of them.

#include "worker/model/cp_attention.h"

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cp_support.h"
#include "nlohmann/json.hpp"
#include "test_support.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/data/context_slices.h"

namespace muster {
namespace {

using testing::ElementsAre;

struct Case {
  int cp;
  ContextForm form;
  int64_t groups;  // of 4 heads
  bool rope, seq_major;
  std::string Name() const {
    return absl::StrCat("cp", cp, " ", form.name, ", ", groups, " groups", rope ? ", rope" : "",
                        seq_major ? ", (S, B) rows" : "");
  }
};
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int cp : {2, 4}) {
    for (const ContextForm& form : ContextForms(cp)) {
      const int64_t few = form.type == CpCommType::kA2a ? cp : 2;
      cases.push_back({cp, form, 4, false, false});
      cases.push_back({cp, form, few, true, true});
    }
  }
  cases.push_back({3, {"p2p", CpCommType::kP2p}, 2, true, false});
  cases.push_back({3, {"all_gather", CpCommType::kAllGather}, 1, false, true});
  return cases;
}

constexpr int64_t kHeads = 4, kChannels = 4, kBatch = 2;

// One attention over `seq` tokens, whole or on one of the ranks.
class Attention {
 public:
  Attention(const Case& c, int64_t seq, at::ScalarType dtype)
      : case_(c), seq_(seq), shape_{.heads = kHeads, .groups = c.groups, .channels = kChannels} {
    TransformerConfig config = TinyConfig();
    config.kv_channels = kChannels;
    config.max_position_embeddings = seq;
    config.position_embedding = PositionEmbedding::kRope;
    rotary_config_ = config;
    const int64_t width = c.groups * (kHeads / c.groups + 2) * kChannels;
    qkv_ = RandomLeaf({kBatch, seq, width}, 7).detach().to(dtype);
    weights_ = RandomLeaf({kBatch, seq, kHeads * kChannels}, 8).detach().to(dtype);
  }

  // (B, S, C) -> (N, C), and back.
  at::Tensor ToRows(const at::Tensor& x) const {
    return (case_.seq_major ? x.transpose(0, 1) : x).reshape({-1, x.size(2)});
  }
  at::Tensor FromRows(const at::Tensor& rows) const {
    if (!case_.seq_major) return rows.view({kBatch, -1, rows.size(1)});
    return rows.view({-1, kBatch, rows.size(1)}).transpose(0, 1);
  }

  struct Result {
    at::Tensor out, dqkv;  // (B, S, C)
  };
  // Of one rank's place, by `plan` (null: alone). `mask`: the whole one.
  Result Run(ContextPlan* plan, const at::Tensor& mask) const {
    const ContextPlace place =
        plan == nullptr ? ContextPlace{} : ContextPlace{plan->cp.rank, plan->cp.size};
    const TokenLayout layout{
        .batch = kBatch, .seq = seq_ / place.size, .seq_major = case_.seq_major};
    const RotaryTable table(rotary_config_, qkv_.scalar_type(), at::kCPU, place);
    const RotaryTable* rotary = case_.rope ? &table : nullptr;
    at::Tensor qkv = ToRows(SliceForContext(qkv_, 1, place)).clone().set_requires_grad(true);
    at::Tensor rows;
    if (plan != nullptr) {
      if (mask.defined()) {
        plan->options.hidden = SliceForContext(mask, 2, place);
        plan->options.piece.exact = true;
      }
      rows = ContextAttentionOp(qkv, shape_, layout, rotary, *plan);
    } else if (mask.defined()) {
      QkvHeads heads = SplitQkv(qkv, shape_, layout);
      if (rotary != nullptr) {
        heads.q = rotary->RotateOp(heads.q);
        heads.k = rotary->RotateOp(heads.k);
      }
      rows = ExactAttention(heads, shape_, layout, {.mask = mask});
    } else {
      rows = FlashCausalAttentionOp(qkv, shape_, layout, rotary);
    }
    (rows * ToRows(SliceForContext(weights_, 1, place))).sum().backward();
    return {FromRows(rows.detach()), FromRows(qkv.grad())};
  }

  // Every rank's result against the slices of the whole one.
  void ExpectSlicesOfOneRank(const at::Tensor& mask, double tolerance) const {
    const Result whole = Run(nullptr, mask);
    RunRanks(case_.cp, [&](CommunicatorPtr world) {
      const ContextGroups groups(*world, case_.form.a2a_size);
      ContextPlan plan{.comm_type = case_.form.type, .cp = groups.Place(*world)};
      const Result own = Run(&plan, mask);
      const ContextPlace place{plan.cp.rank, plan.cp.size};
      EXPECT_LE(MaxDifference(own.out, SliceForContext(whole.out, 1, place)), tolerance);
      EXPECT_LE(MaxDifference(own.dqkv, SliceForContext(whole.dqkv, 1, place)), tolerance);
      return absl::OkStatus();
    });
  }

 private:
  const Case case_;
  const int64_t seq_;
  const AttentionShape shape_;
  TransformerConfig rotary_config_;
  at::Tensor qkv_, weights_;  // (B, S, C)
};

TEST(ContextAttentionTest, CausalIsThatOfOneRank) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.Name());
    Attention(c, 24, at::kDouble).ExpectSlicesOfOneRank({}, 1e-12);
  }
}

// Documents end after tokens 4 and 13: some queries see none of a step's keys.
TEST(ContextAttentionTest, MaskedIsThatOfOneRank) {
  at::Tensor mask = at::ones({1, 1, 24, 24}, at::kBool).triu(1).repeat({kBatch, 1, 1, 1});
  mask.narrow(2, 5, 19).narrow(3, 0, 5).fill_(true);
  mask[1].narrow(1, 14, 10).narrow(2, 0, 14).fill_(true);
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.Name());
    Attention(c, 24, at::kDouble).ExpectSlicesOfOneRank(mask, 1e-12);
  }
}

TEST(ContextAttentionTest, Fp32StaysNear) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.Name());
    Attention(c, 48, at::kFloat).ExpectSlicesOfOneRank({}, 5e-6);
  }
}

// Chunks of 64 tokens: BlockedAttention takes them on CPUs with bf16 products, else LibTorch.
TEST(ContextAttentionTest, Bf16StaysNear) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.Name());
    Attention(c, 2 * c.cp * 64, at::kBFloat16).ExpectSlicesOfOneRank({}, 0.05);
  }
}

// Outputs and gradients of PyTorch's scaled_dot_product_attention (make_cp_goldens.py).
TEST(ContextAttentionTest, IsPyTorchsAttention) {
  const nlohmann::json golden = nlohmann::json::parse(
      std::ifstream(std::string(MUSTER_SOURCE_DIR) + "/tests/golden/context/attention.json"));
  const int64_t batch = golden["batch"], seq = golden["seq"], channels = golden["channels"];
  at::Tensor mask = at::ones({seq, seq}, at::kBool).triu(1);
  for (const int64_t end : golden["document_ends"]) {
    mask.narrow(0, end, seq - end).narrow(1, 0, end).fill_(true);
  }
  mask = mask.expand({batch, 1, seq, seq});
  for (const nlohmann::json& numbers : golden["cases"]) {
    const int64_t num_heads = numbers["heads"], groups = numbers["groups"];
    const auto wave = [&](const char* name, int64_t heads) {
      const double a = golden["waves"][name][0], b = golden["waves"][name][1];
      const at::Tensor i = at::arange(batch * seq * heads * channels, at::kDouble);
      return at::sin(i * a + b).view({batch, seq, heads, channels});
    };
    const auto expected = [&](const char* name, int64_t heads) {
      return at::tensor(numbers[name].get<std::vector<double>>(), at::kDouble)
          .view({batch, seq, heads, channels});
    };
    for (const ContextForm& form : ContextForms(2)) {
      SCOPED_TRACE(absl::StrCat(form.name, ", ", groups, " groups"));
      RunRanks(2, [&](CommunicatorPtr world) {
        const ContextGroups levels(*world, form.a2a_size);
        ContextPlan plan{.comm_type = form.type, .cp = levels.Place(*world)};
        const ContextPlace place{world->rank(), 2};
        if (numbers["masked"].get<bool>()) {
          plan.options.piece.exact = true;
          plan.options.hidden = SliceForContext(mask, 2, place);
        }
        const auto own = [&](const char* name, int64_t heads) {
          return SliceForContext(wave(name, heads), 1, place).set_requires_grad(true);
        };
        const QkvHeads heads = {own("q", num_heads), own("k", groups), own("v", groups)};
        const TokenLayout layout{.batch = batch, .seq = seq / 2};
        const at::Tensor rows = ContextAttentionOp(heads, layout, plan);
        rows.backward(own("dout", num_heads).detach().reshape(rows.sizes()));
        const auto expect = [&](const at::Tensor& actual, const char* name, int64_t n) {
          EXPECT_LE(MaxDifference(actual, SliceForContext(expected(name, n), 1, place)), 1e-13)
              << name;
        };
        expect(rows.detach().view(heads.q.sizes()), "out", num_heads);
        expect(heads.q.grad(), "dq", num_heads);
        expect(heads.k.grad(), "dk", groups);
        expect(heads.v.grad(), "dv", groups);
        return absl::OkStatus();
      });
    }
  }
}

// One sample of 12 tokens over 2 ranks, whose gradients are compared with central differences.
class SmallContext {
 public:
  SmallContext(CpCommType type, double dropout) : type_(type), dropout_(dropout) {}

  // qkv (S, C), of all tokens -> sum of weighted outputs, and with `grad` its gradient.
  double Run(const at::Tensor& qkv, at::Tensor* grad) const {
    double sums[2];
    at::Tensor grads[2];
    RunRanks(2, [&](CommunicatorPtr world) {
      const int rank = world->rank();
      ContextPlan plan{.comm_type = type_, .cp = {.comm = world.get(), .rank = rank, .size = 2}};
      plan.options.piece.exact = dropout_ > 0;
      plan.options.piece.dropout = dropout_;
      plan.options.piece.generator = at::detail::createCPUGenerator(3 + rank);
      const at::Tensor own =
          SliceForContext(qkv, 0, {rank, 2}).clone().set_requires_grad(grad != nullptr);
      const at::Tensor rows = ContextAttentionOp(own, {.heads = 4, .groups = 2, .channels = 2},
                                                 {.batch = 1, .seq = kTokens / 2}, nullptr, plan);
      const at::Tensor sum =
          (rows * SliceForContext(RandomLeaf({kTokens, 8}, 5).detach(), 0, {rank, 2})).sum();
      sums[rank] = sum.item<double>();
      if (grad == nullptr) return absl::OkStatus();
      sum.backward();
      grads[rank] = own.grad();
      return absl::OkStatus();
    });
    if (grad != nullptr) {
      const auto chunks = [&](int rank) { return grads[rank].chunk(2, 0); };
      *grad = at::cat({chunks(0)[0], chunks(1)[0], chunks(1)[1], chunks(0)[1]}, 0);
    }
    return sums[0] + sums[1];
  }

  static constexpr int64_t kTokens = 12, kWidth = 16;

 private:
  const CpCommType type_;
  const double dropout_;
};

TEST(ContextAttentionTest, GradientsAreThoseOfFiniteDifferences) {
  for (const CpCommType type : {CpCommType::kP2p, CpCommType::kAllGather, CpCommType::kA2a}) {
    for (const double dropout : {0.0, 0.3}) {
      SCOPED_TRACE(absl::StrCat(static_cast<int>(type), ", dropout ", dropout));
      const SmallContext attention(type, dropout);
      const at::Tensor qkv =
          RandomLeaf({SmallContext::kTokens, SmallContext::kWidth}, 4).detach().clone();
      at::Tensor grad;
      attention.Run(qkv, &grad);
      double* const x = qkv.data_ptr<double>();
      constexpr double kStep = 1e-5;
      for (int64_t i = 0; i < qkv.numel(); ++i) {
        const double at_i = x[i];
        x[i] = at_i + kStep;
        const double above = attention.Run(qkv, nullptr);
        x[i] = at_i - kStep;
        const double below = attention.Run(qkv, nullptr);
        x[i] = at_i;
        const double expected = (above - below) / (2 * kStep);
        ASSERT_NEAR(grad.view(-1)[i].item<double>(), expected, 1e-8) << "element " << i;
      }
    }
  }
}

// What a rank of a ring posts, computes and waits for; 2 samples, 2 heads in 1 group of D = 4,
// fp64.
struct RingTrace {
  std::vector<std::string> forward, backward;
  ExchangeRecorder::Traffic forward_traffic, backward_traffic;
};
std::vector<RingTrace> TraceRing(int cp, int64_t seq) {
  std::vector<RingTrace> traces(cp);
  RunRanks(cp, [&](CommunicatorPtr world) {
    ExchangeRecorder ring(*world);
    RingTrace& trace = traces[world->rank()];
    const ContextPlan plan{.cp = {.comm = &ring, .rank = world->rank(), .size = cp}};
    const at::Tensor qkv = RandomLeaf({2 * seq / cp, 16}, 3);
    const KernelEvents kernels(ring.events());
    const at::Tensor rows = ContextAttentionOp(qkv, {.heads = 2, .groups = 1, .channels = 4},
                                               {.batch = 2, .seq = seq / cp}, nullptr, plan);
    trace.forward = ring.TakeEvents();
    trace.forward_traffic = ring.TakeTraffic();
    rows.sum().backward();
    trace.backward = ring.TakeEvents();
    trace.backward_traffic = ring.TakeTraffic();
    return absl::OkStatus();
  });
  return traces;
}

// Reference 14.3. 24 tokens, 6 a rank in chunks of 3; K and V: 2 x 2 samples x 6 x 4 fp64 = 768
// bytes. Every exchange is posted before the attention that it overlaps with.
TEST(RingTest, PostsTheNextExchangeBeforeItComputes) {
  const std::vector<RingTrace> traces = TraceRing(4, 24);
  EXPECT_THAT(traces[0].forward,
              ElementsAre("post 768", "attend 6 x 6", "wait 768",  // diagonal
                          "post 768", "attend 3 x 6", "wait 768",  // of rank 3: behind
                          "post 768", "attend 3 x 6", "wait 768",  // of rank 2
                          "attend 3 x 6"));                        // of rank 1
  EXPECT_THAT(traces[2].forward,
              ElementsAre("post 768", "attend 6 x 6", "wait 768",  //
                          "post 768", "attend 6 x 3", "wait 768",  // of rank 1: before
                          "post 768", "attend 6 x 3", "wait 768",  // of rank 0
                          "attend 3 x 6"));                        // of rank 3
  // KV alone, KV and the gradient so far, the gradient alone; from the last keys to the diagonal.
  EXPECT_THAT(traces[0].backward,
              ElementsAre("post 768", "attend backward 3 x 6", "wait 768",    // of rank 1
                          "post 1536", "attend backward 3 x 6", "wait 1536",  // of rank 2
                          "post 1536", "attend backward 3 x 6", "wait 1536",  // of rank 3
                          "post 768", "attend backward 6 x 6", "wait 768"));  // diagonal
  EXPECT_THAT(traces[2].backward,
              ElementsAre("post 768", "attend backward 3 x 6", "wait 768",    // of rank 3
                          "post 1536", "attend backward 6 x 3", "wait 1536",  // of rank 0
                          "post 1536", "attend backward 6 x 3", "wait 1536",  // of rank 1
                          "post 768", "attend backward 6 x 6", "wait 768"));  // diagonal
}

// cp (cp - 1) messages of KV forward, cp² backward with as many bytes of KV and of its gradient.
TEST(RingTest, MessagesAndBytesAreThoseOfTheReference) {
  for (const int cp : {2, 3, 4}) {
    SCOPED_TRACE(cp);
    const int64_t kv_bytes = 768;  // of 6 tokens a rank, as above
    ExchangeRecorder::Traffic forward, backward;
    for (const RingTrace& trace : TraceRing(cp, 6 * cp)) {
      forward.messages += trace.forward_traffic.messages;
      forward.bytes += trace.forward_traffic.bytes;
      backward.messages += trace.backward_traffic.messages;
      backward.bytes += trace.backward_traffic.bytes;
    }
    EXPECT_EQ(forward.messages, cp * (cp - 1));
    EXPECT_EQ(forward.bytes, cp * (cp - 1) * kv_bytes);
    EXPECT_EQ(backward.messages, cp * cp);
    EXPECT_EQ(backward.bytes, 2 * cp * (cp - 1) * kv_bytes);
  }
}

// Rank 1 fails at its second exchange, forward or backward: everybody else is freed.
TEST(RingTest, AbortInMidRingFreesAllRanks) {
  for (const bool in_backward : {false, true}) {
    SCOPED_TRACE(in_backward);
    std::vector<CommunicatorPtr> worlds = MakeThreadWorld(4);
    std::vector<absl::Status> results(4);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; ++rank) {
      threads.emplace_back([&, rank] {
        const int64_t exchange = !in_backward ? 2 : 3 + 2;
        FailingCommunicator ring(*worlds[rank], rank == 1 ? exchange : -1);
        const ContextPlan plan{.cp = {.comm = &ring, .rank = rank, .size = 4}};
        try {
          const at::Tensor qkv = RandomLeaf({6, 16}, 3);
          ContextAttentionOp(qkv, {.heads = 2, .groups = 1, .channels = 4}, {.batch = 1, .seq = 6},
                             nullptr, plan)
              .sum()
              .backward();
        } catch (const CollectiveError& e) {
          results[rank] = e.status;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& status : results) {
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr("pulled the plug"));
    }
  }
}

}  // namespace
}  // namespace muster
