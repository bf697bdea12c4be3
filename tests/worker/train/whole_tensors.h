// Every tensor of a checkpoint, whole.
#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "common/ckpt/verify.h"
#include "worker/checkpoint/shard_reader.h"
#include "worker/checkpoint/tensor_slice.h"

namespace muster {

inline std::map<std::string, at::Tensor> WholeTensors(const std::string& folder) {
  const auto manifest = ReadManifest(folder);
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  ShardReader reader(folder, *manifest);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, saved] : manifest->content.tensors) {
    NamedTensor whole{.name = name,
                      .data = at::empty(saved.global_shape, ScalarTypeOf(saved.dtype))};
    const absl::Status filled = reader.Fill(whole);
    EXPECT_TRUE(filled.ok()) << filled;
    tensors[name] = whole.data;
  }
  return tensors;
}

}  // namespace muster
