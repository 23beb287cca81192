// Batched sampling on rows of float32 logits. The meaning is llmx/sample/reference.py; no sort of the vocabulary.
#pragma once
#include <cstdint>

#include "isa.h"
#include "slots.h"

namespace llmx {

struct SampleRow {        // one head row that draws a token
  const float* logits;    // [V], not changed
  Slot* slot;             // history and counts as they stand before this token
  int64_t position;       // of the new token in the sequence: the Philox counter
  const uint32_t* mask;   // null: none
  int32_t top;            // logprobs wanted: -1 none, else the number of most likely tokens
  int32_t n_ids;
  const int32_t* ids;     // further ids whose logprobs are wanted
  int32_t token;          // out
  uint8_t status;         // out: llmx.batch.Status
  int32_t* lp_ids;        // out [lp_width]: chosen, top, ids; -1 pads
  float* lp;              // out [lp_width]; -inf pads
  int32_t* rank;          // out
  int32_t lp_width;
};

struct ScoreRow {         // one head row whose next token is known
  const float* logits;
  int32_t next, top, width;
  int32_t* ids;           // out [width]: next, then the most likely
  float* lp;
  int32_t* rank;
  uint8_t status;         // out
};

struct SampleKernels {
  int64_t (*scratch_bytes)(int vocab);  // per thread
  void (*sample)(SampleRow* rows, int64_t begin, int64_t end, int vocab, void* scratch);
  void (*score)(ScoreRow* rows, int64_t begin, int64_t end, int vocab, void* scratch);
};

const SampleKernels& sample_kernels(Isa isa);

}  // namespace llmx
