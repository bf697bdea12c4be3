// Every NCCL and CUDA runtime call of the NCCL communicator, behind a virtual: failures can be
// injected without a GPU, and only nccl_api_cuda.cc needs the headers of either.
// Implementations are thread-safe as NCCL is: calls on one communicator come one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

// Opaque: ncclComm_t, cudaStream_t, cudaEvent_t.
using NcclComm = void*;
using CudaStream = void*;
using CudaEvent = void*;

// The values of ncclResult_t (checked in nccl_api_cuda.cc).
enum class NcclResult {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// The values of ncclDataType_t and ncclRedOp_t.
enum class NcclType {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};
enum class NcclReduction { kSum = 0, kMax = 2, kMin = 3 };

inline constexpr int kNcclNoColor = -1;  // NCCL_SPLIT_NOCOLOR
using NcclId = std::array<char, 128>;    // ncclUniqueId

class NcclApi {
 public:
  virtual ~NcclApi() = default;

  [[nodiscard]] virtual NcclResult GetUniqueId(NcclId* id) = 0;
  // Non-blocking communicators: kInProgress is an answer; poll GetAsyncError until it is another.
  // NCCL may write *comm from a thread of its own until then, so *comm must live as long as that.
  [[nodiscard]] virtual NcclResult InitRank(NcclComm* comm, int size, const NcclId& id,
                                            int rank) = 0;
  [[nodiscard]] virtual NcclResult Split(NcclComm parent, int color, int key, NcclComm* comm) = 0;
  [[nodiscard]] virtual NcclResult Finalize(NcclComm comm) = 0;
  [[nodiscard]] virtual NcclResult Destroy(NcclComm comm) = 0;
  [[nodiscard]] virtual NcclResult Abort(NcclComm comm) = 0;
  [[nodiscard]] virtual NcclResult GetAsyncError(NcclComm comm, NcclResult* result) = 0;
  // "unhandled system error: <the last message of the communicator>"
  virtual std::string Explain(NcclResult result, NcclComm comm) = 0;

  [[nodiscard]] virtual NcclResult GroupStart() = 0;
  [[nodiscard]] virtual NcclResult GroupEnd() = 0;
  // `count`: of elements; as NCCL counts them for each operation.
  [[nodiscard]] virtual NcclResult AllReduce(const void* in, void* out, size_t count, NcclType type,
                                             NcclReduction op, NcclComm comm,
                                             CudaStream stream) = 0;
  [[nodiscard]] virtual NcclResult ReduceScatter(const void* in, void* out, size_t out_count,
                                                 NcclType type, NcclReduction op, NcclComm comm,
                                                 CudaStream stream) = 0;
  [[nodiscard]] virtual NcclResult AllGather(const void* in, void* out, size_t in_count,
                                             NcclType type, NcclComm comm, CudaStream stream) = 0;
  [[nodiscard]] virtual NcclResult Broadcast(const void* in, void* out, size_t count, NcclType type,
                                             int root, NcclComm comm, CudaStream stream) = 0;
  [[nodiscard]] virtual NcclResult Send(const void* in, size_t count, NcclType type, int peer,
                                        NcclComm comm, CudaStream stream) = 0;
  [[nodiscard]] virtual NcclResult Recv(void* out, size_t count, NcclType type, int peer,
                                        NcclComm comm, CudaStream stream) = 0;

  [[nodiscard]] virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;  // on the device
  virtual void Free(void* memory) = 0;
  // The stream on which the calling thread's tensor operations run.
  [[nodiscard]] virtual absl::StatusOr<CudaStream> CurrentStream() = 0;
  [[nodiscard]] virtual absl::StatusOr<CudaStream> CreateStream() = 0;
  virtual void DestroyStream(CudaStream stream) = 0;
  [[nodiscard]] virtual absl::StatusOr<CudaEvent> CreateEvent() = 0;  // without timing
  virtual void DestroyEvent(CudaEvent event) = 0;
  [[nodiscard]] virtual absl::Status RecordEvent(CudaEvent event, CudaStream stream) = 0;
  [[nodiscard]] virtual absl::Status StreamWaitEvent(CudaStream stream, CudaEvent event) = 0;
  // True when everything before the event is done. An error: the device is lost.
  [[nodiscard]] virtual absl::StatusOr<bool> QueryEvent(CudaEvent event) = 0;
};

// The real one, for a device of this process. Only in builds with MUSTER_CUDA.
std::shared_ptr<NcclApi> MakeCudaNcclApi(int device);

}  // namespace muster
