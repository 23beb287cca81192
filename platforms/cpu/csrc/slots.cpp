#include "slots.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace llmx {

namespace {

template <class T>
void copy_list(const T* from, int n, std::vector<T>* to, const T** pointer) {
  to->assign(from, from + n);
  *pointer = to->data();
}

// Takes over the row; the caller's lists do not outlive the call.
void set_row(Slot* slot, const LlmxSamplingRow& row) {
  const bool limited = row.allowed_ids != nullptr;
  slot->row = row;
  copy_list(row.stop_ids, row.n_stop, &slot->stop_ids, &slot->row.stop_ids);
  copy_list(row.bias_ids, row.n_bias, &slot->bias_ids, &slot->row.bias_ids);
  copy_list(row.bias, row.n_bias, &slot->bias, &slot->row.bias);
  copy_list(row.bad_words, row.n_bad, &slot->bad_words, &slot->row.bad_words);
  slot->allowed_ids.reserve(1);  // so that an empty list (nothing allowed) is not null (all allowed)
  copy_list(row.allowed_ids, limited ? row.n_allowed : 0, &slot->allowed_ids, &slot->row.allowed_ids);
  if (!limited) slot->row.allowed_ids = nullptr;
  slot->penalties = row.presence != 0.0f || row.frequency != 0.0f || row.repetition != 1.0f;
}

// What was generated before a preemption counts as generated, not as prompt.
void set_history(Slot* slot, const int32_t* tokens, size_t n, int prompt_len) {
  slot->history.assign(tokens, tokens + n);
  slot->prompt_len = prompt_len;
  slot->last_token = n ? tokens[n - 1] : -1;
  slot->counts.clear();
  if (!slot->penalties) return;
  for (size_t i = 0; i < n; ++i) slot->counts[tokens[i]] += i >= static_cast<size_t>(prompt_len) ? 1 : 0;
}

}  // namespace

void SlotTable::configure(int max_requests, int groups, const int* max_blocks) {
  slots_.assign(max_requests, Slot{});
  tables_.assign(groups, {});
  strides_.assign(groups, 0);
  for (int g = 0; g < groups; ++g) {
    strides_[g] = max_blocks[g];
    tables_[g].assign(static_cast<size_t>(max_requests) * max_blocks[g], 0);
  }
}

const char* SlotTable::apply(const LlmxStepArgs& step) {
  error_.clear();
  if (leave(step) && join(step) && place(step)) fork(step);
  return error_.c_str();
}

void SlotTable::append(int slot, int32_t token) {
  Slot& s = slots_[slot];
  s.history.push_back(token);
  s.last_token = token;
  if (s.penalties) ++s.counts[token];
}

bool SlotTable::leave(const LlmxStepArgs& step) {
  for (int i = 0; i < step.n_left; ++i) {
    const int slot = step.left[i];
    if (slot < 0 || slot >= size()) return fail("left[%d] is slot %d: slots are 0..%d", i, slot, size() - 1);
    if (!slots_[slot].used) return fail("left[%d] is slot %d: no request holds it", i, slot);
    slots_[slot] = Slot{};
    for (size_t g = 0; g < tables_.size(); ++g) {
      const auto row = tables_[g].begin() + slot * strides_[g];
      std::fill(row, row + strides_[g], 0);  // the null page: nothing of the old request can be read
    }
  }
  return true;
}

bool SlotTable::join(const LlmxStepArgs& step) {
  for (int i = 0; i < step.n_joined; ++i) {
    const LlmxJoined& j = step.joined[i];
    if (j.slot < 0 || j.slot >= size()) return fail("joined[%d] takes slot %d: slots are 0..%d", i, j.slot, size() - 1);
    if (j.fork_of >= 0) continue;
    Slot& slot = slots_[j.slot];
    if (slot.used) return fail("joined[%d] takes slot %d: a request holds it and has not left", i, j.slot);
    if (j.prompt_len < 0 || j.prompt_len > j.n_tokens)
      return fail("joined[%d] has a prompt of %d tokens: it brings %d tokens in all", i, j.prompt_len, j.n_tokens);
    slot.used = true;
    slot.lora = j.lora;
    set_row(&slot, j.row);
    set_history(&slot, j.tokens, j.n_tokens, j.prompt_len);
  }
  return true;
}

bool SlotTable::place(const LlmxStepArgs& step) {
  for (size_t g = 0; g < tables_.size(); ++g) {
    const int n = step.n_new_blocks ? step.n_new_blocks[g] : 0;
    for (int i = 0; i < n; ++i) {
      const int32_t* entry = step.new_blocks[g] + 3 * i;
      const int slot = entry[0], index = entry[1], block = entry[2];
      const int group = static_cast<int>(g);
      if (slot < 0 || slot >= size()) return fail("new_blocks[%d][%d] names slot %d: slots are 0..%d", group, i, slot, size() - 1);
      if (!slots_[slot].used) return fail("new_blocks[%d][%d] names slot %d: no request holds it yet", group, i, slot);
      if (index < 0 || index >= strides_[g])
        return fail("new_blocks[%d][%d] has index %d: block tables of group %d have %lld entries", group, i, index, group,
                    static_cast<long long>(strides_[g]));
      if (block < 0) return fail("new_blocks[%d][%d] names block %d: blocks are numbered from 0", group, i, block);
      tables_[g][slot * strides_[g] + index] = block;
    }
  }
  return true;
}

bool SlotTable::fork(const LlmxStepArgs& step) {
  for (int i = 0; i < step.n_joined; ++i) {
    const LlmxJoined& j = step.joined[i];
    if (j.fork_of < 0) continue;
    Slot& slot = slots_[j.slot];
    if (slot.used) return fail("joined[%d] takes slot %d: a request holds it and has not left", i, j.slot);
    if (j.fork_of >= size() || !slots_[j.fork_of].used) return fail("joined[%d] forks slot %d: no request holds it", i, j.fork_of);
    const Slot& parent = slots_[j.fork_of];
    const int length = static_cast<int>(parent.history.size());
    if (j.prompt_len < 0 || j.prompt_len > length)
      return fail("joined[%d] has a prompt of %d tokens: slot %d, which it forks, has %d tokens", i, j.prompt_len, j.fork_of, length);
    slot.used = true;
    slot.lora = j.lora;
    set_row(&slot, j.row);
    set_history(&slot, parent.history.data(), parent.history.size(), j.prompt_len);
    for (size_t g = 0; g < tables_.size(); ++g) {
      const auto from = tables_[g].begin() + j.fork_of * strides_[g];
      std::copy(from, from + strides_[g], tables_[g].begin() + j.slot * strides_[g]);
    }
  }
  return true;
}

bool SlotTable::fail(const char* format, ...) {
  char text[200];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  error_ = text;
  return false;
}

}  // namespace llmx
