#include "worker/parallel/ddp.h"

#include <cmath>
#include <utility>

#include <ATen/ops/stack.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/parallel/grad_hooks.h"

namespace muster {

DistributedDataParallel::~DistributedDataParallel() {
  for (const Chunk& chunk : chunks_) {
    for (const ParameterPtr& p : chunk.params) {
      RemoveGradHook(*p);
      p->sink = nullptr;
      p->gatherer = nullptr;
    }
  }
}

void DistributedDataParallel::GradReady(Parameter& parameter) {
  const auto found = groups_of_.find(&parameter);
  MUSTER_CHECK(found != groups_of_.end());
  // Called inside the backward pass, where a Status cannot travel.
  absl::Status status = found->second.grads->GradReady(parameter);
  if (!status.ok()) throw CollectiveError(std::move(status));
}

absl::Status DistributedDataParallel::StartGradSync(int chunk) {
  for (const auto& group : chunks_[chunk].groups) RETURN_IF_ERROR(group->StartGradSync());
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::FinishGradSync(int chunk) {
  for (const auto& group : chunks_[chunk].groups) RETURN_IF_ERROR(group->FinishGradSync());
  for (const auto& gather : chunks_[chunk].gathers) RETURN_IF_ERROR(gather->Expire());
  return absl::OkStatus();
}

void DistributedDataParallel::ZeroGradBuffer() {
  if (inter_) inter_->Clear();
  for (const Chunk& chunk : chunks_) {
    for (const auto& buffer : chunk.buffers) buffer->ZeroGrads();
    for (const auto& group : chunk.groups) group->Reset();
  }
}

void DistributedDataParallel::ForgetUnfinished() {
  if (inter_) inter_->Clear();
  for (const Chunk& chunk : chunks_) {
    for (const auto& group : chunk.groups) group->ForgetUnfinished();
    for (const auto& gather : chunk.gathers) gather->ForgetUnfinished();
    for (const ParameterPtr& p : chunk.params) {
      p->gatherer = nullptr;
      p->data.mutable_grad() = at::Tensor();  // of a backward pass that was broken off
    }
  }
  forward_pre_hook_enabled_ = false;
}

void DistributedDataParallel::ScaleGradients(double factor) {
  if (factor == 1.0) return;
  for (const Chunk& chunk : chunks_) {
    for (const auto& group : chunk.groups) group->ScaleOwned(factor);
    for (const ParameterPtr& p : chunk.params) p->main_grad_squares.reset();
  }
}

std::vector<const GradBuffer*> DistributedDataParallel::buffers(int chunk) const {
  std::vector<const GradBuffer*> buffers;
  for (const auto& buffer : chunks_[chunk].buffers) buffers.push_back(buffer.get());
  return buffers;
}

std::vector<ChunkBucketNorm> DistributedDataParallel::bucket_norms() const {
  std::vector<ChunkBucketNorm> norms;
  std::vector<at::Tensor> pending;
  for (int c = 0; c < num_chunks(); ++c) {
    for (const auto& group : chunks_[c].groups) {
      const bool is_expert = !group->buckets()[0]->params[0]->allreduce;
      for (const PendingNorm& norm : group->norms()) {
        norms.push_back({c, is_expert, {norm.bucket, norm.first_param}});
        pending.push_back(norm.norm);
      }
    }
  }
  if (pending.empty()) return norms;
  const at::Tensor read = at::stack(pending).cpu();  // one look at the device for all of them
  for (size_t i = 0; i < norms.size(); ++i) {
    norms[i].bucket.norm = read.const_data_ptr<double>()[i];
  }
  return norms;
}

std::vector<DataParallel::LocalNorm> DistributedDataParallel::LocalNorms() const {
  std::vector<LocalNorm> norms;
  for (const ChunkBucketNorm& entry : bucket_norms()) {
    norms.push_back({absl::StrCat("bucket ", entry.bucket.bucket, " of chunk ", entry.chunk,
                                  ", which begins with ", entry.bucket.first_param),
                     entry.bucket.norm});
  }
  return norms;
}

void DistributedDataParallel::SetLastMicrobatch(bool value) {
  for (const Chunk& chunk : chunks_)
    for (const auto& group : chunk.groups) group->set_is_last_microbatch(value);
}

}  // namespace muster
