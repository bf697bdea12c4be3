// Known models, for the tests of what a job needs.
#pragma once

#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"

namespace muster {

struct Job {
  JobSpec spec;
  ResolvedSpec resolved;
};

inline Job Gpt2() {
  Job job;
  ModelSpec& m = job.spec.model;
  m.num_layers = 12;
  m.hidden_size = 768;
  m.num_attention_heads = 12;
  m.seq_length = 1024;
  job.spec.training.micro_batch_size = 4;
  job.spec.training.train_iters = 10;
  ResolvedSpec& r = job.resolved;
  r.global_batch_size = 8;
  r.ffn_hidden_size = 3072;
  r.kv_channels = 64;
  r.num_query_groups = 12;
  r.max_position_embeddings = 1024;
  r.vocab_size = 50257;
  r.padded_vocab_size = 50304;
  r.train_iters = 10;
  return job;
}

// Llama 3.2 1B: 16 layers, 2048, 32 heads in 8 groups of 64, SwiGLU 8192, 128256 tokens, tied.
inline Job Llama1B() {
  Job job;
  ModelSpec& m = job.spec.model;
  m.num_layers = 16;
  m.hidden_size = 2048;
  m.num_attention_heads = 32;
  m.seq_length = 2048;
  m.position_embedding_type = "rope";
  m.normalization = "RMSNorm";
  m.swiglu = true;
  m.add_bias_linear = false;
  m.attention_dropout = m.hidden_dropout = 0;
  job.spec.training.micro_batch_size = 1;
  job.spec.training.bf16 = true;
  ResolvedSpec& r = job.resolved;
  r.global_batch_size = 16;
  r.ffn_hidden_size = 8192;
  r.kv_channels = 64;
  r.num_query_groups = 8;
  r.max_position_embeddings = 2048;
  r.vocab_size = r.padded_vocab_size = 128256;
  r.grads_in_fp32 = true;
  return job;
}

}  // namespace muster
