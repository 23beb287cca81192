// What the native executor keeps per slot: sampling row, token history with counts, last token, block-table rows.
// Written only by SlotTable::apply (changes of one Step, in the order llmx.batch documents) and SlotTable::append (sampled tokens).
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "step.h"

namespace llmx {

struct Slot {
  bool used = false;
  LlmxSamplingRow row{};  // pointers refer to the vectors below
  std::vector<int32_t> stop_ids, bias_ids, allowed_ids, bad_words;
  std::vector<float> bias;
  std::vector<int32_t> history;  // prompt, then generated
  int32_t prompt_len = 0;
  int32_t lora = -1;  // slot of its adapter
  int32_t last_token = -1;
  bool penalties = false;                       // any of the three is on: counts are kept
  std::unordered_map<int32_t, int32_t> counts;  // generated tokens -> times; prompt tokens are entered with 0
};

class SlotTable {
 public:
  void configure(int max_requests, int groups, const int* max_blocks);  // block-table row lengths per group
  // Returns an empty string, or what is wrong with the step (a bug of the caller; the table is then undefined). The text
  // lives until the next call.
  const char* apply(const LlmxStepArgs& step);
  void append(int slot, int32_t token);  // a token was drawn for the slot
  Slot& at(int slot) { return slots_[slot]; }
  const int32_t* blocks(int group) const { return tables_[group].data(); }  // [max_requests, max_blocks[group]]
  int64_t stride(int group) const { return strides_[group]; }
  int size() const { return static_cast<int>(slots_.size()); }

 private:
  bool leave(const LlmxStepArgs& step);
  bool join(const LlmxStepArgs& step);
  bool place(const LlmxStepArgs& step);
  bool fork(const LlmxStepArgs& step);
  bool fail(const char* format, ...) __attribute__((format(printf, 2, 3)));

  std::vector<Slot> slots_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<int64_t> strides_;
  std::string error_;
};

}  // namespace llmx
