// Log-probabilities and ranks of raw logits.
#pragma once
#include "sampler_walk_impl.h"

namespace llmx {
namespace LLMX_NS {

// log(sum(exp(x))) in fixed chunks; -inf when all are -inf.
static double log_sum_exp(const float* x, int vocab, const float* tops, float top) {
  if (top == kNegInf) return static_cast<double>(kNegInf);
  double total = 0.0;
  for (int c = 0; c < chunk_count(vocab); ++c) {
    if (tops[c] - top < -88.0f) continue;
    F16 sum = zero();
    for (int v = 0; v < kSampleChunk; v += kLanes) sum = add(sum, exp(sub(load_logits(x, static_cast<int64_t>(c) * kSampleChunk + v, vocab), set1(top))));
    total += hsum(sum);
  }
  return static_cast<double>(top) + __builtin_log(total);
}

static int32_t rank_of(const float* x, int vocab, const float* tops, int32_t token) {
  const float own = x[token];
  int32_t rank = 1;
  for (int c = 0; c < chunk_count(vocab); ++c) {
    if (tops[c] < own) continue;
    for (int64_t at = static_cast<int64_t>(c) * kSampleChunk; at < static_cast<int64_t>(c + 1) * kSampleChunk && at < vocab; at += kLanes) {
      const F16 here = load_logits(x, at, vocab);
      rank += __builtin_popcount(mask_lt(set1(own), here));
      uint32_t equal = at >= token ? 0u : mask_eq(here, set1(own));
      if (at + kLanes > token && at < token) equal &= (1u << (token - at)) - 1u;
      rank += __builtin_popcount(equal);
    }
  }
  return rank;
}

struct Columns {  // where the logprobs of one row go
  int32_t* ids;
  float* lp;
  int width;
};

LLMX_INLINE void pad_columns(const Columns& to, int from) {
  for (int i = from; i < to.width; ++i) {
    to.ids[i] = -1;
    to.lp[i] = kNegInf;
  }
}

LLMX_INLINE float logprob(float logit, double norm) { return logit == kNegInf ? kNegInf : static_cast<float>(static_cast<double>(logit) - norm); }

// Column 0 the token, then the `count` most likely, then `extra`; pads the rest.
static void report(const float* x, int vocab, const float* tops, float top, int32_t token, int count, const int32_t* extra, int n_extra, const Columns& to,
                   int32_t* rank, const SampleScratch& s) {
  const double norm = log_sum_exp(x, vocab, tops, top);
  int at = 0;
  if (rank) *rank = rank_of(x, vocab, tops, token);
  if (to.width <= 0) return;
  to.ids[at] = token;
  to.lp[at++] = logprob(x[token], norm);
  int wanted = count < to.width - at ? count : to.width - at;
  wanted = wanted < vocab ? wanted : vocab;
  if (wanted > 0) {
    const int n = choose_top(x, vocab, tops, wanted, s);
    sort_descending(s.chosen, n);
    for (int i = 0; i < n; ++i) {
      const int32_t id = key_id(s.chosen[i]);
      to.ids[at] = id;
      to.lp[at++] = logprob(x[id], norm);
    }
  }
  for (int i = 0; i < n_extra && at < to.width; ++i) {
    to.ids[at] = extra[i];
    to.lp[at++] = inside(extra[i], vocab) ? logprob(x[extra[i]], norm) : kNegInf;
  }
  pad_columns(to, at);
}

}  // namespace LLMX_NS
}  // namespace llmx
