# Packages. Protobuf and gRPC are found before any torch path is known (torch ships protobuf 3.13 headers),
# and no translation unit sees both: torch is reached only through the target muster::torch.
find_package(Threads REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(Protobuf 3.21 REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(GTest REQUIRED)
find_package(benchmark QUIET)
find_package(SQLite3 REQUIRED)
if(NOT Protobuf_VERSION VERSION_LESS 4)
  message(FATAL_ERROR "Protobuf ${Protobuf_VERSION} was found; 3.21 of Debian 12 is needed")
endif()

# LibTorch: the PyPI wheel, unpacked by ./dev setup. The CPU build links libtorch_cpu and libc10 only:
# libtorch would pull in libtorch_cuda and add 0.5 s to every start.
set(MUSTER_TORCH_DIR "${MUSTER_DEPS_DIR}/torch-2.11.0/torch")
set(MUSTER_CUDART_DIR "${MUSTER_DEPS_DIR}/cuda-runtime-13.0/nvidia/cu13/lib")
if(NOT EXISTS "${MUSTER_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LibTorch is not in ${MUSTER_TORCH_DIR}: run ./dev setup first")
endif()
file(READ "${MUSTER_TORCH_DIR}/version.py" MUSTER_TORCH_VERSION_PY)
if(NOT MUSTER_TORCH_VERSION_PY MATCHES "2\\.11\\.0")
  message(FATAL_ERROR "LibTorch in ${MUSTER_TORCH_DIR} is not 2.11.0: run ./dev setup")
endif()
add_library(muster_torch INTERFACE)
add_library(muster::torch ALIAS muster_torch)
target_include_directories(muster_torch SYSTEM INTERFACE
  "${MUSTER_TORCH_DIR}/include" "${MUSTER_TORCH_DIR}/include/torch/csrc/api/include")
target_link_directories(muster_torch INTERFACE "${MUSTER_TORCH_DIR}/lib")
target_link_libraries(muster_torch INTERFACE torch_cpu c10 Threads::Threads)
target_link_options(muster_torch INTERFACE
  -Wl,--allow-shlib-undefined "-Wl,-rpath,${MUSTER_TORCH_DIR}/lib:${MUSTER_CUDART_DIR}")

# CUDA and NCCL: the machine's toolkit where there is one, else the wheels that torch pins, fetched by ./dev (headers and
# libraries only; nothing here needs nvcc yet). Reached through muster::cuda, which no torch-free code links.
if(MUSTER_CUDA)
  find_package(CUDAToolkit QUIET)
  set(MUSTER_CUDA_WHEELS "${MUSTER_DEPS_DIR}/cuda-toolkit-13.0/nvidia")
  find_path(MUSTER_CUDA_INCLUDE cuda_runtime_api.h
    HINTS ${CUDAToolkit_INCLUDE_DIRS} "${MUSTER_CUDA_WHEELS}/cu13/include" REQUIRED)
  find_library(MUSTER_CUDART_LIBRARY NAMES cudart libcudart.so.13
    HINTS ${CUDAToolkit_LIBRARY_DIR} "${MUSTER_CUDART_DIR}" REQUIRED)
  find_path(MUSTER_NCCL_INCLUDE nccl.h
    HINTS ${CUDAToolkit_INCLUDE_DIRS} "${MUSTER_CUDA_WHEELS}/nccl/include" REQUIRED)
  find_library(MUSTER_NCCL_LIBRARY NAMES nccl libnccl.so.2
    HINTS ${CUDAToolkit_LIBRARY_DIR} "${MUSTER_CUDA_WHEELS}/nccl/lib" REQUIRED)
  add_library(muster_cuda INTERFACE)
  add_library(muster::cuda ALIAS muster_cuda)
  target_include_directories(muster_cuda SYSTEM INTERFACE "${MUSTER_CUDA_INCLUDE}" "${MUSTER_NCCL_INCLUDE}")
  target_link_libraries(muster_cuda INTERFACE
    "${MUSTER_TORCH_DIR}/lib/libc10_cuda.so" "${MUSTER_NCCL_LIBRARY}" "${MUSTER_CUDART_LIBRARY}")
endif()
