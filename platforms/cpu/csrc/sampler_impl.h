// The sampler for one ISA level; what it means is llmx/sample/reference.py, step by step.
//
// The vocabulary is never sorted. It is walked in chunks of 64 logits whose maxima are kept: the k-th largest maximum bounds
// the k-th largest logit from below, so only few chunks are looked at again. Exponentials over the vocabulary are taken only
// where no top_k cuts it first. All sums run over fixed chunks and lanes: a row's token does not depend on its neighbours.
#pragma once
#include "sampler.h"
#include "sampler_draw_impl.h"
#include "sampler_logprobs_impl.h"
#include "sampler_penalties.h"

namespace llmx {
namespace LLMX_NS {

constexpr float kGreedyBelow = 1e-5f;  // reference.GREEDY_BELOW

LLMX_INLINE bool stops_banned(const Slot& slot) { return slot.row.n_stop > 0 && generated_tokens(slot) < slot.row.min_tokens; }

LLMX_INLINE bool changes_logits(const SampleRow& row) {
  const Slot& slot = *row.slot;
  return row.mask || slot.row.allowed_ids || slot.row.n_bias || slot.row.n_bad || slot.penalties || stops_banned(slot);
}

static void process_logits(const SampleRow& row, int vocab, float* z) {
  const Slot& slot = *row.slot;
  if (slot.row.allowed_ids) {
    for (int i = 0; i < vocab; ++i) z[i] = kNegInf;
    for (int i = 0; i < slot.row.n_allowed; ++i) {
      const int32_t id = slot.row.allowed_ids[i];
      if (inside(id, vocab)) z[id] = row.logits[id];
    }
  } else {
    memcpy(z, row.logits, static_cast<size_t>(vocab) * sizeof(float));
  }
  for (int i = 0; i < slot.row.n_bias; ++i) {
    if (inside(slot.row.bias_ids[i], vocab)) z[slot.row.bias_ids[i]] += slot.row.bias[i];
  }
  if (row.mask) {
    for (int at = 0; at < vocab; at += kLanes) {
      const uint32_t bits = row.mask[at / 32] >> (at % 32);
      if (at + kLanes <= vocab)
        store(z + at, select_mask(bits & 0xffffu, load(z + at), set1(kNegInf)));
      else
        store_n(z + at, select_mask(bits & 0xffffu, load_n(z + at, vocab - at), set1(kNegInf)), vocab - at);
    }
  }
  if (stops_banned(slot)) {
    for (int i = 0; i < slot.row.n_stop; ++i) {
      if (inside(slot.row.stop_ids[i], vocab)) z[slot.row.stop_ids[i]] = kNegInf;
    }
  }
  if (slot.row.n_bad) ban_bad_words(slot, vocab, z);
  if (slot.penalties) penalize(slot, vocab, z);
}

LLMX_INLINE uint8_t status_of(float top) { return top != top || top == __builtin_inff() ? kNan : kOk; }

static void sample_row(SampleRow* row, int vocab, const SampleScratch& s) {
  const float temperature = row->slot->row.temperature;
  const bool greedy = temperature < kGreedyBelow, changed = changes_logits(*row);
  row->token = -1;
  if (greedy && !changed && row->top < 0) {
    row->token = arg_max(row->logits, vocab, &row->status);
    return;
  }
  const float raw_top = chunk_tops(row->logits, vocab, s.raw_tops);
  const Columns columns = {row->lp_ids, row->lp, row->top >= 0 ? row->lp_width : 0};
  pad_columns(columns, 0);
  row->status = status_of(raw_top);
  if (row->status != kOk) return;
  const float *z = row->logits, *tops = s.raw_tops;
  float top = raw_top;
  if (changed) {
    process_logits(*row, vocab, s.z);
    top = chunk_tops(s.z, vocab, s.z_tops);
    z = s.z;
    tops = s.z_tops;
  }
  row->status = status_of(top) != kOk ? status_of(top) : top == kNegInf ? kMaskDead : kOk;
  if (row->status != kOk) return;
  row->token = greedy ? arg_max(z, vocab, &row->status) : draw_token(*row, vocab, top, z, tops, s);
  if (row->top >= 0) report(row->logits, vocab, s.raw_tops, raw_top, row->token, row->top, row->ids, row->n_ids, columns, row->rank, s);
}

static void sample_rows(SampleRow* rows, int64_t begin, int64_t end, int vocab, void* scratch) {
  const SampleScratch s = sample_scratch(vocab, scratch);
  for (int64_t i = begin; i < end; ++i) sample_row(rows + i, vocab, s);
}

static void score_rows(ScoreRow* rows, int64_t begin, int64_t end, int vocab, void* scratch) {
  const SampleScratch s = sample_scratch(vocab, scratch);
  for (int64_t i = begin; i < end; ++i) {
    ScoreRow& row = rows[i];
    const Columns columns = {row.ids, row.lp, row.width};
    const float top = chunk_tops(row.logits, vocab, s.raw_tops);
    pad_columns(columns, 0);
    row.status = status_of(top);
    if (row.status == kOk) report(row.logits, vocab, s.raw_tops, top, row.next, row.top, nullptr, 0, columns, row.rank, s);
  }
}

}  // namespace LLMX_NS
}  // namespace llmx
