// An NCCL without a GPU, for error paths: a world whose other members do exactly what this one does
// (data is copied as for one rank), where any call can be made to fail, to stay in progress, or
// never to finish. Thread-safe.
#pragma once

#include <cstring>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/runtime/mutex.h"
#include "worker/comm/nccl_api.h"

namespace muster {

class FakeNccl final : public NcclApi {
 public:
  // The next call of this name answers so; then it works again.
  void FailNext(const std::string& call, NcclResult result) {
    MutexLock lock(&mu_);
    failures_[call] = result;
  }
  // What GetAsyncError tells of every communicator.
  void SetAsync(NcclResult result) {
    MutexLock lock(&mu_);
    async_ = result;
  }
  // Answers of GetAsyncError before the one set by SetAsync: kInProgress, so many times.
  void StayInProgress(int polls) {
    MutexLock lock(&mu_);
    polls_left_ = polls;
  }
  // Kernels hang: no event is reached.
  void Hang() {
    MutexLock lock(&mu_);
    hanging_ = true;
  }
  int Count(const std::string& call) {
    MutexLock lock(&mu_);
    return counts_[call];
  }
  // Handles made and not given back.
  int num_live() {
    MutexLock lock(&mu_);
    return static_cast<int>(live_.size());
  }

  NcclResult GetUniqueId(NcclId* id) override {
    id->fill('u');
    return Call("GetUniqueId");
  }
  NcclResult InitRank(NcclComm* comm, int, const NcclId&, int) override {
    const NcclResult result = Call("InitRank");
    if (Went(result)) *comm = Make();
    return result;
  }
  NcclResult Split(NcclComm, int color, int, NcclComm* comm) override {
    const NcclResult result = Call("Split");
    if (Went(result) && color != kNcclNoColor) *comm = Make();
    return result;
  }
  NcclResult Finalize(NcclComm) override { return Call("Finalize"); }
  NcclResult Destroy(NcclComm comm) override {
    Drop(comm);
    return Call("Destroy");
  }
  NcclResult Abort(NcclComm comm) override {
    Drop(comm);
    return Call("Abort");
  }
  NcclResult GetAsyncError(NcclComm, NcclResult* result) override {
    const NcclResult answer = Call("GetAsyncError");
    MutexLock lock(&mu_);
    *result = polls_left_ > 0 ? NcclResult::kInProgress : async_;
    if (polls_left_ > 0) --polls_left_;
    return answer;
  }
  std::string Explain(NcclResult result, NcclComm) override {
    return absl::StrCat("fake NCCL result ", static_cast<int>(result));
  }

  NcclResult GroupStart() override { return Call("GroupStart"); }
  NcclResult GroupEnd() override { return Call("GroupEnd"); }
  NcclResult AllReduce(const void*, void*, size_t, NcclType, NcclReduction, NcclComm,
                       CudaStream) override {
    return Call("AllReduce");
  }
  NcclResult ReduceScatter(const void*, void*, size_t, NcclType, NcclReduction, NcclComm,
                           CudaStream) override {
    return Call("ReduceScatter");
  }
  NcclResult AllGather(const void*, void*, size_t, NcclType, NcclComm, CudaStream) override {
    return Call("AllGather");
  }
  NcclResult Broadcast(const void*, void*, size_t, NcclType, int, NcclComm, CudaStream) override {
    return Call("Broadcast");
  }
  NcclResult Send(const void*, size_t, NcclType, int, NcclComm, CudaStream) override {
    return Call("Send");
  }
  NcclResult Recv(void*, size_t, NcclType, int, NcclComm, CudaStream) override {
    return Call("Recv");
  }

  absl::StatusOr<void*> Allocate(size_t) override { return Cuda("Allocate"); }
  void Free(void* memory) override { Drop(memory); }
  absl::StatusOr<CudaStream> CurrentStream() override {
    if (Call("CurrentStream") != NcclResult::kSuccess) return Lost();
    return CudaStream(this);
  }
  absl::StatusOr<CudaStream> CreateStream() override { return Cuda("CreateStream"); }
  void DestroyStream(CudaStream stream) override { Drop(stream); }
  absl::StatusOr<CudaEvent> CreateEvent() override { return Cuda("CreateEvent"); }
  void DestroyEvent(CudaEvent event) override { Drop(event); }
  absl::Status RecordEvent(CudaEvent, CudaStream) override { return Plain("RecordEvent"); }
  absl::Status StreamWaitEvent(CudaStream, CudaEvent) override { return Plain("StreamWaitEvent"); }
  absl::StatusOr<bool> QueryEvent(CudaEvent) override {
    if (Call("QueryEvent") != NcclResult::kSuccess) return Lost();
    MutexLock lock(&mu_);
    return !hanging_;
  }

 private:
  static bool Went(NcclResult result) {
    return result == NcclResult::kSuccess || result == NcclResult::kInProgress;
  }
  static absl::Status Lost() { return absl::UnavailableError("fake device lost"); }

  NcclResult Call(const std::string& call) {
    MutexLock lock(&mu_);
    ++counts_[call];
    const auto failure = failures_.find(call);
    if (failure == failures_.end()) return NcclResult::kSuccess;
    const NcclResult result = failure->second;
    failures_.erase(failure);
    return result;
  }
  absl::Status Plain(const std::string& call) {
    return Call(call) == NcclResult::kSuccess ? absl::OkStatus() : Lost();
  }
  absl::StatusOr<void*> Cuda(const std::string& call) {
    if (Call(call) != NcclResult::kSuccess) return Lost();
    return Make();
  }
  void* Make() {
    MutexLock lock(&mu_);
    char* const handle = new char;
    live_.insert(handle);
    return handle;
  }
  void Drop(void* handle) {
    MutexLock lock(&mu_);
    if (live_.erase(handle) == 0) std::abort();  // given back twice
    delete static_cast<char*>(handle);
  }

  Mutex mu_;
  std::map<std::string, NcclResult> failures_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int> counts_ ABSL_GUARDED_BY(mu_);
  std::set<void*> live_ ABSL_GUARDED_BY(mu_);
  NcclResult async_ ABSL_GUARDED_BY(mu_) = NcclResult::kSuccess;
  int polls_left_ ABSL_GUARDED_BY(mu_) = 0;
  bool hanging_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace muster
