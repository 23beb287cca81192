// C ABI of one step: llmx.batch.Step and StepOutput as plain pointers. Filled by llmx_cpu/native.py (ctypes), which keeps the
// same field order; llmx_abi_sizes() lets Python check the sizes. Letters: N requests with rows, T token rows, R head rows,
// S samples, C score spans, G KV groups, V vocabulary.
#pragma once
#include <cstdint>

extern "C" {

struct LlmxSamplingRow {  // llmx.sample.params_rows.SamplingRow
  float temperature, top_p, min_p, presence, frequency, repetition;
  int32_t top_k, min_tokens;
  uint64_t seed;
  const int32_t* stop_ids;
  const int32_t* bias_ids;
  const float* bias;
  const int32_t* allowed_ids;  // null: all
  const int32_t* bad_words;    // sequences one behind the other, each as its length and then its ids
  int32_t n_stop, n_bias, n_allowed, n_bad;  // n_bad: numbers in bad_words, the lengths counted
};

struct LlmxJoined {
  const int32_t* tokens;  // [n_tokens]
  int32_t n_tokens, slot, prompt_len, fork_of;  // fork_of -1: not a fork
  int32_t lora, pad;                            // slot of its adapter; -1: none
  LlmxSamplingRow row;
};

struct LlmxStepArgs {
  int32_t n, t, r, s, c, n_joined, n_left, n_kv_ops;
  const int32_t* slot;       // [N]
  const int32_t* q;          // [N]
  const int32_t* start;      // [N]
  const int32_t* tokens;     // [T]
  const int32_t* head;       // [R]
  const int32_t* samples;    // [S, 3] (slot, first head row, rows)
  const int32_t* score;      // [C, 3] (slot, first head row, rows)
  const int32_t* score_top;  // [C]
  const LlmxJoined* joined;  // [n_joined], forks last
  const int32_t* left;       // [n_left]
  const int32_t* const* new_blocks;  // [G] -> [n_new_blocks[g], 3] (slot, index, block)
  const int32_t* n_new_blocks;       // [G]
  const int32_t* kv_ops;     // [n_kv_ops, 4] (op, group, src, dst)
  const int32_t* want_top;   // [S], -1: the sample wants nothing; null: none does
  const int32_t* want_ids;   // concatenated
  const int32_t* want_ids_offset;  // [S + 1]
  const uint32_t* mask;      // late masks [rows, ceil(V / 32)], rows = all sample rows in order; null: none
  const uint8_t* mask_open;  // [rows]; null: none open
  const uint8_t* mask_drop;  // [rows]; null: none dropped
};

struct LlmxStepResult {     // every pointer belongs to the caller
  int32_t* count;           // [S]
  int32_t* tokens;          // [S, 1 + kmax]
  uint8_t* status;          // [N]
  int32_t* lp_ids;          // [S, 1 + kmax, lp_width]; null: no sample wants logprobs
  float* lp;                // the same
  int32_t* rank;            // [S, 1 + kmax]
  int32_t* score_ids;       // [sum of score rows, score_width]
  float* score_lp;
  int32_t* score_rank;      // [sum of score rows]
  int32_t kmax, lp_width, score_width, pad;
  int64_t t_us[3];          // forward, sample, draft
};

}  // extern "C"
