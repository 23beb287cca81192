// The sampler for one ISA level; what it means is llmx/sample/reference.py, step by step.
//
// The vocabulary is never sorted. It is walked in chunks of 64 logits whose maxima are kept: the k-th largest maximum bounds
// the k-th largest logit from below, so only few chunks are looked at again. Exponentials over the vocabulary are taken only
// where no top_k cuts it first. All sums run over fixed chunks and lanes: a row's token does not depend on its neighbours.
#pragma once
#include "sampler.h"
#include "sampler_penalties.h"
#include "simd.h"

namespace llmx {
namespace LLMX_NS {

constexpr int kSampleChunk = 64;
constexpr float kNegInf = -__builtin_inff();
constexpr float kGreedyBelow = 1e-5f;  // reference.GREEDY_BELOW
constexpr uint8_t kOk = 0, kNan = 1, kMaskDead = 2;  // llmx.batch.Status

struct Entry {
  uint64_t key;  // order_key
  float weight;
};

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

// ------------------------------------------------------------------------------------------------------- random numbers

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

// ---------------------------------------------------------------------------------------------------- order and selection

// Larger logit, larger key; among equal logits the lower id has the larger key. -0 counts as 0.
LLMX_INLINE uint64_t order_key(float logit, int32_t id) {
  const uint32_t bits = float_to_bits(logit + 0.0f);
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return (static_cast<uint64_t>(ordered) << 32) | (0xffffffffu - static_cast<uint32_t>(id));
}
LLMX_INLINE int32_t key_id(uint64_t key) { return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key)); }
LLMX_INLINE float key_logit(uint64_t key) {
  const uint32_t ordered = static_cast<uint32_t>(key >> 32);
  return bits_to_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

LLMX_INLINE uint64_t middle(uint64_t a, uint64_t b, uint64_t c) {
  const uint64_t low = a < b ? a : b, high = a < b ? b : a;
  return c < low ? low : c > high ? high : c;
}

// The k-th largest of n distinct keys, 1 <= k <= n; reorders them.
static uint64_t kth_largest(uint64_t* keys, int n, int k) {
  int low = 0, high = n;
  const int wanted = k - 1;
  while (high - low > 1) {
    const uint64_t pivot = middle(keys[low], keys[low + (high - low) / 2], keys[high - 1]);
    int i = low, j = high - 1;
    while (true) {  // Hoare: larger keys to the left
      while (keys[i] > pivot) ++i;
      while (keys[j] < pivot) --j;
      if (i >= j) break;
      const uint64_t t = keys[i];
      keys[i] = keys[j];
      keys[j] = t;
    }
    if (i == wanted) return keys[i];  // keys are distinct: keys[i] is the pivot
    if (wanted < i)
      high = i;
    else
      low = i + 1;
  }
  return keys[low];
}

// The smallest key of the shortest prefix, in descending order, whose weights reach `target`; 0 when all together do not.
static uint64_t prefix_key(Entry* entries, int n, double target) {
  int low = 0, high = n;
  double before = 0.0;
  uint64_t found = 0;
  while (high > low) {
    const uint64_t pivot = middle(entries[low].key, entries[low + (high - low) / 2].key, entries[high - 1].key);
    int i = low, j = high - 1;
    while (true) {
      while (entries[i].key > pivot) ++i;
      while (entries[j].key < pivot) --j;
      if (i >= j) break;
      const Entry t = entries[i];
      entries[i] = entries[j];
      entries[j] = t;
    }
    double left = before;
    for (int e = low; e < i; ++e) left += entries[e].weight;
    if (left >= target) {  // the prefix ends left of the pivot, at the latest with the smallest key there
      found = entries[low].key;
      for (int e = low; e < i; ++e) found = entries[e].key < found ? entries[e].key : found;
      high = i;
      continue;
    }
    if (left + entries[i].weight >= target) return pivot;
    before = left + entries[i].weight;
    low = i + 1;
  }
  return found;
}

static void sort_descending(uint64_t* keys, int n) {  // heap sort
  for (int end = n, root = n / 2; end > 1;) {
    if (root > 0) {
      --root;
    } else {
      --end;
      const uint64_t t = keys[0];
      keys[0] = keys[end];
      keys[end] = t;
    }
    const uint64_t value = keys[root];
    int at = root;
    for (int child; (child = 2 * at + 1) < end; at = child) {
      if (child + 1 < end && keys[child + 1] < keys[child]) ++child;
      if (keys[child] >= value) break;
      keys[at] = keys[child];
    }
    keys[at] = value;
  }
}

// -------------------------------------------------------------------------------------------------- walks of the vocabulary

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

// ------------------------------------------------------------------------------------------------------------ steps 1 to 5

LLMX_INLINE bool stops_banned(const Slot& slot) { return slot.row.n_stop > 0 && generated_tokens(slot) < slot.row.min_tokens; }

LLMX_INLINE bool changes_logits(const SampleRow& row) {
  const Slot& slot = *row.slot;
  return row.mask || slot.row.allowed_ids || slot.row.n_bias || slot.penalties || stops_banned(slot);
}

LLMX_INLINE bool inside(int32_t id, int vocab) { return id >= 0 && id < vocab; }

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
  if (slot.penalties) penalize(slot, vocab, z);
}

// ------------------------------------------------------------------------------------------------------------ steps 6 to 8

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

// Tokens that may belong to the nucleus: what is lighter than this bound weighs less than 1 - p in all. By ascending id.
static int choose_heavy(int vocab, double bound, const SampleScratch& s) {
  int n = 0;
  const float least = static_cast<float>(bound);
  for (int c = 0; c < chunk_count(vocab); ++c) {
    if (s.sums[c] <= 0.0 || s.sums[c] < bound * 0.5) continue;
    for (int v = 0; v < kSampleChunk; v += kLanes) {
      const int64_t at = static_cast<int64_t>(c) * kSampleChunk + v;
      const F16 w = load(s.weight + at);
      for (uint32_t hits = ~mask_lt(w, set1(least)) & 0xffffu; hits; hits &= hits - 1) {
        const int32_t id = static_cast<int32_t>(at) + __builtin_ctz(hits);
        if (id < vocab && s.weight[id] > 0.0f) s.chosen[n++] = order_key(s.z[id], id);
      }
    }
  }
  return n;
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
  int n;
  double total = 0.0;
  if (has_k) {
    n = choose_top(z, vocab, tops, options.top_k, s);
    weigh_chosen(n, all, s);
    for (int i = 0; i < n; ++i) total += s.weight[i];
  } else {
    total = weigh_vocabulary(z, vocab, tops, all, s);
    SampleScratch here = s;
    here.z = const_cast<float*>(z);  // read only
    n = choose_heavy(vocab, 0.5 * (1.0 - options.top_p) * total / vocab, here);
    weigh_chosen(n, all, s);
  }
  if (has_p) n = keep_nucleus(n, static_cast<double>(options.top_p) * total, s);
  if (options.min_p > 0.0f) weigh_chosen(n, likely, s);
  return draw_chosen(n, uniform, s);
}

// ----------------------------------------------------------------------------------------------------------------- logprobs

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

// --------------------------------------------------------------------------------------------------------------- the entries

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
