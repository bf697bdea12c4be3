// Reductions over plain memory have the bits of those over tensors.
#include "worker/comm/shm_reduce.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "worker/comm/local_reduce.h"
#include "worker/comm/tensor_checks.h"

namespace muster {
namespace {

struct Type {
  at::ScalarType torch;
  ShmDtype ours;
};
constexpr Type kTypes[] = {{at::kFloat, ShmDtype::kFloat}, {at::kDouble, ShmDtype::kDouble},
                           {at::kHalf, ShmDtype::kHalf},   {at::kBFloat16, ShmDtype::kBfloat16},
                           {at::kLong, ShmDtype::kInt64},  {at::kInt, ShmDtype::kInt32},
                           {at::kChar, ShmDtype::kInt8},   {at::kByte, ShmDtype::kUint8},
                           {at::kBool, ShmDtype::kBool}};
constexpr std::pair<ReduceOp, ShmReduceOp> kOps[] = {{ReduceOp::kSum, ShmReduceOp::kSum},
                                                     {ReduceOp::kMax, ShmReduceOp::kMax},
                                                     {ReduceOp::kMin, ShmReduceOp::kMin}};

// Any bits, infinities and NaNs with them; of a bool, 0 and 1.
at::Tensor AnyBits(at::ScalarType dtype, int64_t count, at::Generator generator) {
  if (dtype == at::kBool) return at::randint(0, 2, {count}, generator).to(dtype);
  const int64_t bytes = count * static_cast<int64_t>(at::elementSize(dtype));
  return at::randint(0, 256, {bytes}, generator).to(at::kByte).view(dtype);
}

void ExpectSameBits(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  at::Tensor same = got == want;
  if (at::isFloatingType(got.scalar_type())) same = same | (got.isnan() & want.isnan());
  EXPECT_TRUE(same.all().item<bool>()) << what;
}

TEST(ShmReduceTest, HasTheBitsOfTensorReductionsForAnyInput) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
  for (const Type& type : kTypes) {
    for (const auto& [op, our_op] : kOps) {
      for (const int num_parts : {2, 3, 5}) {
        for (const int64_t count : {1, 31, 2048, 10'007}) {
          std::vector<at::Tensor> parts;
          std::vector<const void*> pointers;
          for (int i = 0; i < num_parts; ++i) {
            parts.push_back(AnyBits(type.torch, count, generator));
            pointers.push_back(parts[i].data_ptr());
          }
          const std::string what = absl::StrCat(DtypeName(type.torch), " ", ReduceOpName(op),
                                                " of ", num_parts, " x ", count);
          const at::Tensor want = ReduceInOrder(parts, op), out = at::empty_like(want);
          const ShmReduceFn reduce = FindShmReduce(type.ours, our_op);
          reduce(out.data_ptr(), pointers.data(), num_parts, count);
          ExpectSameBits(out, want, what);
          for (int i = 0; i < num_parts; ++i) {  // in the place of each part
            const at::Tensor kept = parts[i].clone();
            reduce(parts[i].data_ptr(), pointers.data(), num_parts, count);
            ExpectSameBits(parts[i], want, absl::StrCat(what, " in place of ", i));
            parts[i].copy_(kept);
          }
        }
      }
    }
  }
}

TEST(ShmReduceTest, EveryHalfAndBfloat16IsRead) {
  for (const Type& type : {kTypes[2], kTypes[3]}) {
    const at::Tensor all = at::arange(65536, at::kInt).to(at::kShort).view(type.torch);
    for (const double other : {0.0, 1.0, -3.1e-5, 5.96e-8, 60000.0}) {
      const at::Tensor second = at::full_like(all, other), out = at::empty_like(all);
      const void* const parts[] = {all.data_ptr(), second.data_ptr()};
      FindShmReduce(type.ours, ShmReduceOp::kSum)(out.data_ptr(), parts, 2, 65536);
      ExpectSameBits(out, all + second, absl::StrCat(DtypeName(type.torch), " + ", other));
    }
  }
}

}  // namespace
}  // namespace muster
