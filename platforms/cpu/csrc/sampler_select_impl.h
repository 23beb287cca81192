// Order and selection without a sort of the vocabulary: keys, k-th largest, shortest prefix by weight.
#pragma once
#include "simd.h"

namespace llmx {
namespace LLMX_NS {

struct Entry {
  uint64_t key;  // order_key
  float weight;
};

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

}  // namespace LLMX_NS
}  // namespace llmx
