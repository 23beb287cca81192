// C entry points for tests of slots and sampling: a slot table of its own, changed by real Step arguments.
#include <cstdint>
#include <vector>

#include "isa.h"
#include "sampler.h"
#include "slots.h"

#define LLMX_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct TestSample {  // llmx_cpu tests mirror this with ctypes
  const float* logits;
  const uint32_t* mask;
  const int32_t* ids;
  int32_t *lp_ids, *rank;
  float* lp;
  int64_t position;
  int32_t slot, top, n_ids, lp_width, token, status;
};

struct TestScore {
  const float* logits;
  int32_t *ids, *rank;
  float* lp;
  int32_t next, top, width, status;
};

}  // namespace

LLMX_EXPORT llmx::SlotTable* llmx_test_slots_open(int max_requests, int groups, const int* max_blocks) {
  auto* table = new llmx::SlotTable;
  table->configure(max_requests, groups, max_blocks);
  return table;
}

LLMX_EXPORT void llmx_test_slots_close(llmx::SlotTable* table) { delete table; }
LLMX_EXPORT const char* llmx_test_slots_apply(llmx::SlotTable* table, const LlmxStepArgs* step) { return table->apply(*step); }
LLMX_EXPORT void llmx_test_slots_append(llmx::SlotTable* table, int slot, int32_t token) { table->append(slot, token); }
LLMX_EXPORT const int32_t* llmx_test_slots_blocks(llmx::SlotTable* table, int group) { return table->blocks(group); }

// state: used, prompt length, last token, penalties on. Returns the length of the history; copies what fits.
LLMX_EXPORT int llmx_test_slots_read(llmx::SlotTable* table, int slot, int32_t* state, int32_t* history, int room) {
  const llmx::Slot& s = table->at(slot);
  const int values[4] = {s.used, s.prompt_len, s.last_token, s.penalties};
  for (int i = 0; i < 4; ++i) state[i] = values[i];
  const int length = static_cast<int>(s.history.size());
  for (int i = 0; i < length && i < room; ++i) history[i] = s.history[i];
  return length;
}

// How often a token was generated; -1: neither in the prompt nor generated (or no penalty is on).
LLMX_EXPORT int llmx_test_slots_count(llmx::SlotTable* table, int slot, int32_t token) {
  const auto& counts = table->at(slot).counts;
  const auto found = counts.find(token);
  return found == counts.end() ? -1 : found->second;
}

LLMX_EXPORT void llmx_test_sample(int isa, llmx::SlotTable* table, TestSample* tests, int n, int vocab) {
  const llmx::SampleKernels& kernels = llmx::sample_kernels(static_cast<llmx::Isa>(isa));
  std::vector<uint64_t> scratch(kernels.scratch_bytes(vocab) / 8 + 1);
  std::vector<llmx::SampleRow> rows(n);
  for (int i = 0; i < n; ++i) {
    const TestSample& t = tests[i];
    rows[i] = {t.logits, &table->at(t.slot), t.position, t.mask, t.top, t.n_ids, t.ids, -1, 0, t.lp_ids, t.lp, t.rank, t.lp_width};
  }
  kernels.sample(rows.data(), 0, n, vocab, scratch.data());
  for (int i = 0; i < n; ++i) {
    tests[i].token = rows[i].token;
    tests[i].status = rows[i].status;
  }
}

LLMX_EXPORT void llmx_test_score(int isa, TestScore* tests, int n, int vocab) {
  const llmx::SampleKernels& kernels = llmx::sample_kernels(static_cast<llmx::Isa>(isa));
  std::vector<uint64_t> scratch(kernels.scratch_bytes(vocab) / 8 + 1);
  std::vector<llmx::ScoreRow> rows(n);
  for (int i = 0; i < n; ++i) {
    const TestScore& t = tests[i];
    rows[i] = {t.logits, t.next, t.top, t.width, t.ids, t.lp, t.rank, 0};
  }
  kernels.score(rows.data(), 0, n, vocab, scratch.data());
  for (int i = 0; i < n; ++i) tests[i].status = rows[i].status;
}
