// The real NCCL and CUDA calls. Built with MUSTER_CUDA only.
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/comm/nccl_api.h"

namespace muster {
namespace {

static_assert(static_cast<int>(NcclResult::kInProgress) == ncclInProgress);
static_assert(static_cast<int>(NcclResult::kRemoteError) == ncclRemoteError);
static_assert(static_cast<int>(NcclResult::kInvalidUsage) == ncclInvalidUsage);
static_assert(static_cast<int>(NcclType::kInt8) == ncclInt8);
static_assert(static_cast<int>(NcclType::kUint8) == ncclUint8);
static_assert(static_cast<int>(NcclType::kInt32) == ncclInt32);
static_assert(static_cast<int>(NcclType::kInt64) == ncclInt64);
static_assert(static_cast<int>(NcclType::kFloat16) == ncclFloat16);
static_assert(static_cast<int>(NcclType::kFloat32) == ncclFloat32);
static_assert(static_cast<int>(NcclType::kFloat64) == ncclFloat64);
static_assert(static_cast<int>(NcclType::kBfloat16) == ncclBfloat16);
static_assert(static_cast<int>(NcclReduction::kSum) == ncclSum);
static_assert(static_cast<int>(NcclReduction::kMax) == ncclMax);
static_assert(static_cast<int>(NcclReduction::kMin) == ncclMin);
static_assert(kNcclNoColor == NCCL_SPLIT_NOCOLOR);
static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));

NcclResult Of(ncclResult_t result) { return static_cast<NcclResult>(result); }
ncclDataType_t Of(NcclType type) { return static_cast<ncclDataType_t>(type); }
ncclRedOp_t Of(NcclReduction op) { return static_cast<ncclRedOp_t>(op); }
ncclComm_t Comm(NcclComm comm) { return static_cast<ncclComm_t>(comm); }
// The caller's own memory: NCCL may fill it in later.
ncclComm_t* Place(NcclComm* comm) { return reinterpret_cast<ncclComm_t*>(comm); }
cudaStream_t Stream(CudaStream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t Event(CudaEvent event) { return static_cast<cudaEvent_t>(event); }

absl::Status StatusOf(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(call, ": ", cudaGetErrorString(error)));
}

ncclConfig_t NonBlocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

class CudaNcclApi final : public NcclApi {
 public:
  explicit CudaNcclApi(int device) : device_(device) {}

  NcclResult GetUniqueId(NcclId* id) override {
    ncclUniqueId raw;
    const ncclResult_t result = ncclGetUniqueId(&raw);
    std::memcpy(id->data(), &raw, sizeof(raw));
    return Of(result);
  }
  NcclResult InitRank(NcclComm* comm, int size, const NcclId& id, int rank) override {
    if (cudaSetDevice(device_) != cudaSuccess) return NcclResult::kUnhandledCudaError;
    ncclUniqueId raw;
    std::memcpy(&raw, id.data(), sizeof(raw));
    ncclConfig_t config = NonBlocking();
    return Of(ncclCommInitRankConfig(Place(comm), size, raw, rank, &config));
  }
  NcclResult Split(NcclComm parent, int color, int key, NcclComm* comm) override {
    ncclConfig_t config = NonBlocking();
    return Of(ncclCommSplit(Comm(parent), color, key, Place(comm), &config));
  }
  NcclResult Finalize(NcclComm comm) override { return Of(ncclCommFinalize(Comm(comm))); }
  NcclResult Destroy(NcclComm comm) override { return Of(ncclCommDestroy(Comm(comm))); }
  NcclResult Abort(NcclComm comm) override { return Of(ncclCommAbort(Comm(comm))); }
  NcclResult GetAsyncError(NcclComm comm, NcclResult* result) override {
    ncclResult_t raw = ncclSuccess;
    const ncclResult_t answer = ncclCommGetAsyncError(Comm(comm), &raw);
    *result = Of(raw);
    return Of(answer);
  }
  std::string Explain(NcclResult result, NcclComm comm) override {
    const char* const text = ncclGetErrorString(static_cast<ncclResult_t>(result));
    const char* const last = ncclGetLastError(Comm(comm));
    return absl::StrCat(text, last == nullptr || *last == '\0' ? "" : ": ",
                        last == nullptr ? "" : last);
  }

  NcclResult GroupStart() override { return Of(ncclGroupStart()); }
  NcclResult GroupEnd() override { return Of(ncclGroupEnd()); }
  NcclResult AllReduce(const void* in, void* out, size_t count, NcclType type, NcclReduction op,
                       NcclComm comm, CudaStream stream) override {
    return Of(ncclAllReduce(in, out, count, Of(type), Of(op), Comm(comm), Stream(stream)));
  }
  NcclResult ReduceScatter(const void* in, void* out, size_t out_count, NcclType type,
                           NcclReduction op, NcclComm comm, CudaStream stream) override {
    return Of(ncclReduceScatter(in, out, out_count, Of(type), Of(op), Comm(comm), Stream(stream)));
  }
  NcclResult AllGather(const void* in, void* out, size_t in_count, NcclType type, NcclComm comm,
                       CudaStream stream) override {
    return Of(ncclAllGather(in, out, in_count, Of(type), Comm(comm), Stream(stream)));
  }
  NcclResult Broadcast(const void* in, void* out, size_t count, NcclType type, int root,
                       NcclComm comm, CudaStream stream) override {
    return Of(ncclBroadcast(in, out, count, Of(type), root, Comm(comm), Stream(stream)));
  }
  NcclResult Send(const void* in, size_t count, NcclType type, int peer, NcclComm comm,
                  CudaStream stream) override {
    return Of(ncclSend(in, count, Of(type), peer, Comm(comm), Stream(stream)));
  }
  NcclResult Recv(void* out, size_t count, NcclType type, int peer, NcclComm comm,
                  CudaStream stream) override {
    return Of(ncclRecv(out, count, Of(type), peer, Comm(comm), Stream(stream)));
  }

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    void* memory = nullptr;
    absl::Status status = StatusOf(cudaSetDevice(device_), "cudaSetDevice");
    status.Update(StatusOf(cudaMalloc(&memory, bytes), "cudaMalloc"));
    if (!status.ok()) return status;
    return memory;
  }
  void Free(void* memory) override { (void)cudaFree(memory); }

  absl::StatusOr<CudaStream> CurrentStream() override {
    try {
      return CudaStream(
          c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device_)).stream());
    } catch (const std::exception& e) {
      return absl::UnavailableError(e.what());
    }
  }
  absl::StatusOr<CudaStream> CreateStream() override {
    int low = 0, high = 0;
    cudaStream_t stream = nullptr;
    absl::Status status = StatusOf(cudaSetDevice(device_), "cudaSetDevice");
    status.Update(StatusOf(cudaDeviceGetStreamPriorityRange(&low, &high),
                           "cudaDeviceGetStreamPriorityRange"));
    if (!status.ok()) return status;
    status = StatusOf(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, high),
                      "cudaStreamCreateWithPriority");
    if (!status.ok()) return status;
    return CudaStream(stream);
  }
  void DestroyStream(CudaStream stream) override { (void)cudaStreamDestroy(Stream(stream)); }
  absl::StatusOr<CudaEvent> CreateEvent() override {
    cudaEvent_t event = nullptr;
    const absl::Status status = StatusOf(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                         "cudaEventCreateWithFlags");
    if (!status.ok()) return status;
    return CudaEvent(event);
  }
  void DestroyEvent(CudaEvent event) override { (void)cudaEventDestroy(Event(event)); }
  absl::Status RecordEvent(CudaEvent event, CudaStream stream) override {
    return StatusOf(cudaEventRecord(Event(event), Stream(stream)), "cudaEventRecord");
  }
  absl::Status StreamWaitEvent(CudaStream stream, CudaEvent event) override {
    return StatusOf(cudaStreamWaitEvent(Stream(stream), Event(event), 0), "cudaStreamWaitEvent");
  }
  absl::StatusOr<bool> QueryEvent(CudaEvent event) override {
    const cudaError_t error = cudaEventQuery(Event(event));
    if (error == cudaErrorNotReady) return false;
    if (absl::Status status = StatusOf(error, "cudaEventQuery"); !status.ok()) return status;
    return true;
  }

 private:
  const int device_;
};

}  // namespace

std::shared_ptr<NcclApi> MakeCudaNcclApi(int device) {
  return std::make_shared<CudaNcclApi>(device);
}

}  // namespace muster
