// From processed logits to a token: steps 6 to 8 of llmx/sample/reference.py, and the draw.
#pragma once
#include "sampler.h"
#include "sampler_walk_impl.h"

namespace llmx {
namespace LLMX_NS {

// First word of Philox4x32-10 as a number in [0, 1): llmx/sample/philox.py.
LLMX_INLINE double philox_uniform(uint64_t seed, uint64_t position) {
  uint32_t c0 = static_cast<uint32_t>(position), c1 = static_cast<uint32_t>(position >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t wide0 = static_cast<uint64_t>(0xD2511F53u) * c0, wide1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    c0 = static_cast<uint32_t>(wide1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(wide1);
    c2 = static_cast<uint32_t>(wide0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(wide0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0 * 2.3283064365386962890625e-10;  // 2^-32
}

struct Shape {  // of the distribution: weight = exp((z - top) / temperature), 0 below `cutoff`
  float top, temperature, cutoff;
};

LLMX_INLINE F16 weigh(F16 z, const Shape& shape) {
  const F16 distance = div(sub(z, set1(shape.top)), set1(shape.temperature));
  return select_lt(distance, set1(shape.cutoff), zero(), exp(distance));
}

// Weights by token and their chunk sums; returns the sum. Chunks that hold only zeros have sum 0 and no weights.
static double weigh_vocabulary(const float* z, int vocab, const float* tops, const Shape& shape, const SampleScratch& s) {
  double total = 0.0;
  for (int c = 0; c < chunk_count(vocab); ++c) {
    s.sums[c] = 0.0;
    const float nearest = (tops[c] - shape.top) / shape.temperature;
    if (nearest < shape.cutoff || nearest < -88.0f) continue;
    F16 sum = zero();
    for (int v = 0; v < kSampleChunk; v += kLanes) {
      const int64_t at = static_cast<int64_t>(c) * kSampleChunk + v;
      const F16 w = weigh(load_logits(z, at, vocab), shape);
      store(s.weight + at, w);
      sum = add(sum, w);
    }
    s.sums[c] = hsum(sum);
    total += s.sums[c];
  }
  return total;
}

// Weights of the n chosen tokens, by place.
static void weigh_chosen(int n, const Shape& shape, const SampleScratch& s) {
  for (int i = 0; i < n; i += kLanes) {
    float z[kLanes];
    for (int j = 0; j < kLanes; ++j) z[j] = i + j < n ? key_logit(s.chosen[i + j]) : kNegInf;
    store(s.weight + i, weigh(load(z), shape));
  }
}

// The nucleus of the whole vocabulary ends at a logit in [low, high): everything from `high` on weighs `before`, too little.
struct Border {
  float low, high;
  double before;
};

// Closes in on the border by weighing what lies above four thresholds at a time. Sums that are equal to the target but for
// rounding decide nothing.
static Border find_border(const float* z, int vocab, const float* tops, const Shape& shape, double total, double target, const SampleScratch& s) {
  constexpr int kPasses = 3, kCuts = 4;
  // Whatever is lighter than this weighs, all together, less than half of what may be left out.
  const double least = 0.5 * (total - target) / vocab;
  Border border = {kNegInf, __builtin_inff(), 0.0};
  float low = shape.top - 88.0f * shape.temperature, high = shape.top;  // to interpolate between
  if (least > 0.0) {
    const float bound = shape.top + static_cast<float>(__builtin_log(least)) * shape.temperature;
    if (bound > low) border.low = low = bound < high ? bound : high;
  }
  for (int pass = 0; pass < kPasses; ++pass) {
    float cut[kCuts];
    double above[kCuts] = {0};
    for (int i = 0; i < kCuts; ++i) cut[i] = low + (high - low) * static_cast<float>(i + 1) * 0.2f;
    for (int c = 0; c < chunk_count(vocab); ++c) {
      if (s.sums[c] <= 0.0 || tops[c] < cut[0]) continue;
      F16 sum[kCuts] = {zero(), zero(), zero(), zero()};
      for (int v = 0; v < kSampleChunk; v += kLanes) {
        const int64_t at = static_cast<int64_t>(c) * kSampleChunk + v;
        const F16 here = load_logits(z, at, vocab), w = load(s.weight + at);
        for (int i = 0; i < kCuts; ++i) sum[i] = add(sum[i], select_lt(here, set1(cut[i]), zero(), w));
      }
      for (int i = 0; i < kCuts; ++i) above[i] += hsum(sum[i]);
    }
    for (int i = 0; i < kCuts; ++i) {
      if (above[i] > target * 1.00001) border.low = low = cut[i];
    }
    for (int i = kCuts - 1; i >= 0; --i) {
      if (above[i] < target * 0.99999) {
        border.high = high = cut[i];
        border.before = above[i];
      }
    }
  }
  return border;
}

// Key of the last token of the nucleus of the whole vocabulary, after weigh_vocabulary.
static uint64_t nucleus_key(const float* z, int vocab, const float* tops, const Shape& shape, double total, double target, const SampleScratch& s) {
  const Border border = find_border(z, vocab, tops, shape, total, target, s);
  int n = 0;
  uint64_t smallest = order_key(border.high, 0);
  for (int c = 0; c < chunk_count(vocab); ++c) {
    if (s.sums[c] <= 0.0 || tops[c] < border.low) continue;
    for (int64_t at = static_cast<int64_t>(c) * kSampleChunk; at < static_cast<int64_t>(c + 1) * kSampleChunk; at += kLanes) {
      const F16 here = load_logits(z, at, vocab);
      for (uint32_t hits = mask_lt(here, set1(border.high)) & ~mask_lt(here, set1(border.low)); hits; hits &= hits - 1) {
        const int64_t id = at + __builtin_ctz(hits);
        if (id >= vocab || s.weight[id] <= 0.0f) continue;
        s.entries[n] = {order_key(z[id], static_cast<int32_t>(id)), s.weight[id]};
        smallest = s.entries[n].key < smallest ? s.entries[n].key : smallest;
        ++n;
      }
    }
  }
  const uint64_t key = prefix_key(s.entries, n, target - border.before);
  return key ? key : smallest;
}

// Weights and chunk sums of the tokens whose key is not below `least`; returns the sum.
static double weigh_nucleus(const float* z, int vocab, const float* tops, const Shape& shape, uint64_t least, const SampleScratch& s) {
  const float last = key_logit(least);
  const int32_t last_id = key_id(least);
  double total = 0.0;
  for (int c = 0; c < chunk_count(vocab); ++c) {
    if (s.sums[c] <= 0.0) continue;
    s.sums[c] = 0.0;
    if (tops[c] < last) continue;
    F16 sum = zero();
    for (int v = 0; v < kSampleChunk; v += kLanes) {
      const int64_t at = static_cast<int64_t>(c) * kSampleChunk + v;
      const F16 here = load_logits(z, at, vocab);
      uint32_t kept = ~mask_lt(here, set1(last)) & 0xffffu;
      uint32_t later = at > last_id ? 0xffffu : at + kLanes <= last_id ? 0u : 0xfffeu << (last_id - at);  // ids past the last one
      kept &= ~(mask_eq(here, set1(last)) & later);
      const F16 w = select_mask(kept, weigh(here, shape), zero());
      store(s.weight + at, w);
      sum = add(sum, w);
    }
    s.sums[c] = hsum(sum);
    total += s.sums[c];
  }
  return total;
}

// Keeps the nucleus of the n chosen tokens; s.weight is by place, before and after.
static int keep_nucleus(int n, double target, const SampleScratch& s) {
  for (int i = 0; i < n; ++i) s.entries[i] = {s.chosen[i], s.weight[i]};
  const uint64_t least = prefix_key(s.entries, n, target);
  int kept = 0;
  for (int i = 0; i < n; ++i) {
    if (s.chosen[i] < least) continue;
    s.chosen[kept] = s.chosen[i];
    s.weight[kept++] = s.weight[i];
  }
  return kept;
}

LLMX_INLINE int32_t draw_chosen(int n, double uniform, const SampleScratch& s) {
  double total = 0.0;
  for (int i = 0; i < n; ++i) total += s.weight[i];
  const double target = uniform * total;
  double sum = 0.0;
  int last = 0;
  for (int i = 0; i < n; ++i) {
    if (s.weight[i] <= 0.0f) continue;
    last = i;
    sum += s.weight[i];
    if (sum > target) break;
  }
  return key_id(s.chosen[last]);
}

LLMX_INLINE int32_t draw_vocabulary(int vocab, double total, double uniform, const SampleScratch& s) {
  const double target = uniform * total;
  double sum = 0.0;
  int chunk = 0;
  double before = 0.0;
  for (int c = 0; c < chunk_count(vocab); ++c) {
    if (s.sums[c] <= 0.0) continue;
    chunk = c;
    before = sum;
    sum += s.sums[c];
    if (sum > target) break;
  }
  const int64_t first = static_cast<int64_t>(chunk) * kSampleChunk;
  int64_t last = first;
  sum = before;
  for (int64_t id = first; id < first + kSampleChunk; ++id) {
    if (s.weight[id] <= 0.0f) continue;
    last = id;
    sum += s.weight[id];
    if (sum > target) break;
  }
  return static_cast<int32_t>(last);
}

static int32_t draw_token(const SampleRow& row, int vocab, float top, const float* z, const float* tops, const SampleScratch& s) {
  const LlmxSamplingRow& options = row.slot->row;
  const double uniform = philox_uniform(options.seed, static_cast<uint64_t>(row.position));
  const float cutoff = options.min_p > 0.0f ? static_cast<float>(__builtin_log(static_cast<double>(options.min_p))) : kNegInf;
  const Shape all = {top, options.temperature, kNegInf}, likely = {top, options.temperature, cutoff};
  const bool has_k = options.top_k > 0 && options.top_k < vocab, has_p = options.top_p < 1.0f;
  if (!has_k && !has_p) return draw_vocabulary(vocab, weigh_vocabulary(z, vocab, tops, likely, s), uniform, s);
  if (!has_k) {
    const double total = weigh_vocabulary(z, vocab, tops, all, s);
    const uint64_t last = nucleus_key(z, vocab, tops, all, total, static_cast<double>(options.top_p) * total, s);
    return draw_vocabulary(vocab, weigh_nucleus(z, vocab, tops, likely, last, s), uniform, s);
  }
  int n = choose_top(z, vocab, tops, options.top_k, s);
  weigh_chosen(n, all, s);
  if (has_p) {
    double total = 0.0;
    for (int i = 0; i < n; ++i) total += s.weight[i];
    n = keep_nucleus(n, static_cast<double>(options.top_p) * total, s);
  }
  if (options.min_p > 0.0f) weigh_chosen(n, likely, s);
  return draw_chosen(n, uniform, s);
}

}  // namespace LLMX_NS
}  // namespace llmx
