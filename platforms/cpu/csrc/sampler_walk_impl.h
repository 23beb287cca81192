// Walks over the logits of one row: chunk maxima, the first largest, the k largest.
#pragma once
#include "sampler_select_impl.h"

namespace llmx {
namespace LLMX_NS {

constexpr int kSampleChunk = 64;
constexpr float kNegInf = -__builtin_inff();
constexpr uint8_t kOk = 0, kNan = 1, kMaskDead = 2;  // llmx.batch.Status

struct SampleScratch {  // of one thread, for one vocabulary
  float* z;             // processed logits
  float* weight;        // by token, or by place in `chosen`
  float* raw_tops;      // chunk maxima of the raw logits
  float* z_tops;        // chunk maxima of the processed logits
  double* sums;         // chunk sums of weights
  uint64_t* chosen;     // keys of the tokens still in play, by ascending id
  uint64_t* keys;       // for selection
  Entry* entries;       // for selection by weight
};

LLMX_INLINE int64_t padded_vocab(int vocab) { return (static_cast<int64_t>(vocab) + kSampleChunk - 1) / kSampleChunk * kSampleChunk; }
LLMX_INLINE int chunk_count(int vocab) { return static_cast<int>(padded_vocab(vocab) / kSampleChunk); }

static int64_t sample_scratch_bytes(int vocab) {
  const int64_t v = padded_vocab(vocab), c = v / kSampleChunk;
  return v * static_cast<int64_t>(2 * sizeof(float) + 2 * sizeof(uint64_t) + sizeof(Entry)) + c * static_cast<int64_t>(2 * sizeof(float) + sizeof(double)) + 64;
}

LLMX_INLINE SampleScratch sample_scratch(int vocab, void* memory) {
  const int64_t v = padded_vocab(vocab), c = v / kSampleChunk;
  SampleScratch s;  // eight-byte members first
  s.entries = static_cast<Entry*>(memory);
  s.chosen = reinterpret_cast<uint64_t*>(s.entries + v);
  s.keys = s.chosen + v;
  s.sums = reinterpret_cast<double*>(s.keys + v);
  s.z = reinterpret_cast<float*>(s.sums + c);
  s.weight = s.z + v;
  s.raw_tops = s.weight + v;
  s.z_tops = s.raw_tops + c;
  return s;
}

LLMX_INLINE bool inside(int32_t id, int vocab) { return id >= 0 && id < vocab; }

LLMX_INLINE F16 load_logits(const float* x, int64_t at, int vocab) {  // -inf past the end
  if (at + kLanes <= vocab) return load(x + at);
  if (at >= vocab) return set1(kNegInf);
  const int n = static_cast<int>(vocab - at);
  return select_mask((1u << n) - 1u, load_n(x + at, n), set1(kNegInf));
}

// Chunk maxima; returns the largest logit, or NaN when there is a NaN.
static float chunk_tops(const float* x, int vocab, float* tops) {
  uint32_t numbers = 0xffffu;
  float best = kNegInf;
  for (int c = 0; c < chunk_count(vocab); ++c) {
    F16 top = set1(kNegInf);
    for (int v = 0; v < kSampleChunk; v += kLanes) {
      const F16 here = load_logits(x, static_cast<int64_t>(c) * kSampleChunk + v, vocab);
      numbers &= mask_eq(here, here);
      top = max(here, top);
    }
    tops[c] = hmax(top);
    best = tops[c] > best ? tops[c] : best;
  }
  return numbers == 0xffffu ? best : __builtin_nanf("");
}

// The largest logit's first place, in one pass; -1 where that is no number.
static int32_t arg_max(const float* x, int vocab, uint8_t* status) {
  constexpr int kStretch = 1024;
  uint32_t numbers = 0xffffu;
  float best = kNegInf;
  int64_t where = -1;
  for (int64_t begin = 0; begin < vocab; begin += kStretch) {
    const int64_t end = begin + kStretch < vocab ? begin + kStretch : vocab;
    F16 top0 = set1(kNegInf), top1 = top0;
    for (int64_t at = begin; at < end; at += 2 * kLanes) {
      const F16 a = load_logits(x, at, vocab), b = load_logits(x, at + kLanes, vocab);
      numbers &= mask_eq(a, a) & mask_eq(b, b);
      top0 = max(a, top0);
      top1 = max(b, top1);
    }
    const float top = hmax(max(top0, top1));
    if (top > best) {
      best = top;
      where = begin;
    }
  }
  *status = numbers != 0xffffu || best == __builtin_inff() ? kNan : where < 0 ? kMaskDead : kOk;
  if (*status != kOk) return -1;
  while (x[where] != best) ++where;
  return static_cast<int32_t>(where);
}

// Keys of the k largest logits into `chosen`, by ascending id; returns how many (fewer only if the vocabulary is smaller).
static int choose_top(const float* x, int vocab, const float* tops, int k, const SampleScratch& s) {
  const int chunks = chunk_count(vocab);
  float bound = kNegInf;
  if (k <= chunks) {
    for (int c = 0; c < chunks; ++c) s.keys[c] = order_key(tops[c], c);
    bound = key_logit(kth_largest(s.keys, chunks, k));
  }
  int n = 0;
  for (int c = 0; c < chunks; ++c) {
    if (tops[c] < bound) continue;
    for (int64_t at = static_cast<int64_t>(c) * kSampleChunk; at < static_cast<int64_t>(c + 1) * kSampleChunk && at < vocab; at += kLanes) {
      uint32_t below = mask_lt(load_logits(x, at, vocab), set1(bound));
      if (at + kLanes > vocab) below |= 0xffffu << (vocab - at);
      for (uint32_t hits = ~below & 0xffffu; hits; hits &= hits - 1) {
        const int32_t id = static_cast<int32_t>(at) + __builtin_ctz(hits);
        s.chosen[n++] = order_key(x[id], id);
      }
    }
  }
  if (n <= k) return n;
  memcpy(s.keys, s.chosen, static_cast<size_t>(n) * sizeof(uint64_t));
  const uint64_t least = kth_largest(s.keys, n, k);
  int kept = 0;
  for (int i = 0; i < n; ++i) {
    if (s.chosen[i] >= least) s.chosen[kept++] = s.chosen[i];
  }
  return kept;
}

}  // namespace LLMX_NS
}  // namespace llmx
