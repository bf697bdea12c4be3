# muster_library(common_spec SOURCES a.cc DEPS common_base absl::strings nlohmann_json::nlohmann_json)
#   one library a folder, named after it. Header-only folders give no SOURCES.
# muster_binary(muster-worker SOURCES main.cc DEPS ...)
# muster_test(common_spec_test SOURCES ... DEPS ... [LABELS slow] [TIMEOUT 120] [SANITIZERS address thread | none])
#   one test binary a folder; every gtest case becomes a ctest case. Which sanitizers run it follows from its folder
#   (below); SANITIZERS overrides that.
function(muster_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  if(A_SOURCES)
    add_library(${name} STATIC ${A_SOURCES})
    target_link_libraries(${name} PUBLIC ${A_DEPS})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${A_DEPS})
  endif()
endfunction()

function(muster_binary name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE ${A_DEPS})
endfunction()

# Built by `./dev ci`: the tests that a sanitizer preset runs.
add_custom_target(asan_tests)
add_custom_target(tsan_tests)

# ThreadSanitizer: what links neither torch nor gRPC. AddressSanitizer: that, and RPC.
set(MUSTER_TSAN_FOLDERS "^(common/(base|runtime|spec|topology|schedule|rerun|ckpt|control|recovery|dataset|tokenizer)|coordinator/(core|engine)|worker/core|sim)$")
set(MUSTER_ASAN_FOLDERS "^(common/.*|coordinator/.*|worker/(core|agent)|sim)$")

include(GoogleTest)
function(muster_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;DEPS;LABELS;SANITIZERS" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  file(RELATIVE_PATH folder "${CMAKE_SOURCE_DIR}/tests" "${CMAKE_CURRENT_SOURCE_DIR}")
  if(NOT A_SANITIZERS)
    if(folder MATCHES "${MUSTER_TSAN_FOLDERS}")
      list(APPEND A_SANITIZERS thread)
    endif()
    if(folder MATCHES "${MUSTER_ASAN_FOLDERS}")
      list(APPEND A_SANITIZERS address)
    endif()
  endif()
  set(excluded)
  if(MUSTER_SANITIZE AND NOT MUSTER_SANITIZE IN_LIST A_SANITIZERS)
    set(excluded EXCLUDE_FROM_ALL)
  endif()
  add_executable(${name} ${excluded} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE ${A_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_compile_definitions(${name} PRIVATE
    MUSTER_SOURCE_DIR="${CMAKE_SOURCE_DIR}" MUSTER_BIN_DIR="${CMAKE_BINARY_DIR}/bin")
  if("address" IN_LIST A_SANITIZERS)
    add_dependencies(asan_tests ${name})
    list(APPEND A_LABELS asan)
  endif()
  if("thread" IN_LIST A_SANITIZERS)
    add_dependencies(tsan_tests ${name})
    list(APPEND A_LABELS tsan)
  endif()
  # One label that names all of them: gtest_discover_tests takes no list, and ctest -L matches a part of a label.
  string(REPLACE ";" "+" labels "${A_LABELS}")
  if(excluded)
    return()
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST
    PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${labels}")
endfunction()

# muster_gpu_test(worker_model_gpu_test SOURCES ... DEPS ...): a test of the CUDA code itself, label gpu. One ctest case
# without discovery: listing the cases would need the CUDA libraries at hand.
function(muster_gpu_test name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  if(NOT MUSTER_CUDA)
    return()
  endif()
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE ${A_DEPS} muster::cuda
    -Wl,--no-as-needed "${MUSTER_TORCH_DIR}/lib/libtorch_cuda.so" -Wl,--as-needed
    GTest::gtest GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_compile_definitions(${name} PRIVATE MUSTER_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS gpu TIMEOUT 300)
endfunction()
