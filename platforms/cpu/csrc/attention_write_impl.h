// Rows of K and V into pages.
#pragma once
#include "attention_pages_impl.h"
#include "attention_plan.h"

namespace llmx {
namespace LLMX_NS {

// K and V of one head, for one token or for two neighbours that share a pair (pair: `from` and the row `next` floats on).

LLMX_INLINE void write_k(F32Page, uint8_t* to, const float* from, int64_t next, bool pair, int slot, int dim) {
  float* page = reinterpret_cast<float*>(to) + slot;
  for (int d = 0; d < dim; ++d) {
    page[d * kBlockTokens] = from[d];
    if (pair) page[d * kBlockTokens + 1] = from[next + d];
  }
}

LLMX_INLINE void write_v(F32Page, uint8_t* to, const float* from, int64_t next, bool pair, int slot, int dim) {
  float* page = reinterpret_cast<float*>(to) + static_cast<int64_t>(slot) * dim;
  memcpy(page, from, static_cast<size_t>(dim) * 4);
  if (pair) memcpy(page + dim, from + next, static_cast<size_t>(dim) * 4);
}

LLMX_INLINE void round_row(uint16_t* to, const float* from, int dim) {
  int d = 0;
  for (; d + kLanes <= dim; d += kLanes) store_bf16(to + d, load(from + d));
  for (; d < dim; ++d) to[d] = float_to_bf16(from[d]);
}

LLMX_INLINE void write_k(Bf16Page, uint8_t* to, const float* from, int64_t next, bool pair, int slot, int dim) {
  uint16_t first[kMaxHeadDim], second[kMaxHeadDim];
  round_row(first, from, dim);
  if (pair) round_row(second, from + next, dim);
  uint8_t* page = to + slot * 4;
  for (int d = 0; d < dim; d += 2, page += Bf16Page::kUnitBytes) {
    memcpy(page, first + d, 4);
    if (pair) memcpy(page + 4, second + d, 4);
  }
}

LLMX_INLINE void write_v(Bf16Page, uint8_t* to, const float* from, int64_t next, bool pair, int slot, int dim) {
  uint16_t first[kMaxHeadDim], second[kMaxHeadDim];
  round_row(first, from, dim);
  uint16_t* page = reinterpret_cast<uint16_t*>(to) + static_cast<int64_t>(slot / 2) * dim * 2;
  if (pair) {
    round_row(second, from + next, dim);
    uint32_t* pairs = reinterpret_cast<uint32_t*>(page);
    for (int d = 0; d < dim; ++d) pairs[d] = first[d] | static_cast<uint32_t>(second[d]) << 16;
  } else {  // 16-bit stores: another thread may write the other half
    for (int d = 0; d < dim; ++d) page[2 * d + slot % 2] = first[d];
  }
}

// Codes of one token of one head: 2-byte stores in K, single bytes in V, since other threads may write its neighbours.
static void write_k(Int8Page page_type, uint8_t* to, const float* from, int64_t next, bool pair, int slot, int dim) {
  int8_t code[kMaxHeadDim + 2 * kLanes];
  const float scale = quantize_row(code, from, dim);
  uint8_t* page = to + slot * 2;
  for (int d = 0; d < dim; d += 2, page += Int8Page::kUnitBytes) memcpy(page, code + d, 2);
  memcpy(to + static_cast<int64_t>(dim) * kBlockTokens + slot * 4, &scale, 4);
  if (pair) write_k(page_type, to, from + next, 0, false, slot + 1, dim);
}

static void write_v(Int8Page page_type, uint8_t* to, const float* from, int64_t next, bool pair, int slot, int dim) {
  int8_t code[kMaxHeadDim + 2 * kLanes];
  const float scale = quantize_row(code, from, dim);
  uint8_t* page = to + static_cast<int64_t>(slot / 2) * dim * 2 + slot % 2;
  for (int d = 0; d < dim; ++d) page[2 * d] = static_cast<uint8_t>(code[d]);
  memcpy(to + static_cast<int64_t>(dim) * kBlockTokens + slot * 4, &scale, 4);
  if (pair) write_v(page_type, to, from + next, 0, false, slot + 1, dim);
}

// Asks for the memory that a token's rows go to: a line of K for each unit, which would come one after the other.
template <class Page>
LLMX_INLINE void ask_rows(const KvWriteArgs& a, int request, int64_t position) {
  const KvGeometry& geo = a.geo;
  const int32_t block = a.table[static_cast<int64_t>(a.slot[request]) * a.stride + position / kBlockTokens];
  const int64_t k = k_bytes<Page>(geo.head_dim), v = v_bytes<Page>(geo.v_head_dim), slot = position % kBlockTokens;
  const int64_t row = v / kBlockTokens * Page::kPerUnit;  // of V
  const uint8_t* at = a.pages + block * geo.block_bytes + geo.layer_offset;
  for (const uint8_t* end = at + geo.kv_heads * k; at < end; at += kLineBytes) __builtin_prefetch(at, 1, 3);
  for (int h = 0; h < geo.kv_heads; ++h, at += v) {
    const uint8_t* first = at + slot / Page::kPerUnit * row;
    for (int64_t i = 0; i < row; i += kLineBytes) __builtin_prefetch(first + i, 1, 3);
  }
}

// Writes one token row, or two where both fall into this call and share a pair; returns how many.
template <class Page>
static int write_rows(const KvWriteArgs& a, int request, int64_t position, int64_t row, int64_t end) {
  const KvGeometry& geo = a.geo;
  const int32_t block = a.table[static_cast<int64_t>(a.slot[request]) * a.stride + position / kBlockTokens];
  const int slot = static_cast<int>(position % kBlockTokens);
  const bool pair = slot % 2 == 0 && row + 1 < end;
  uint8_t* k = a.pages + block * geo.block_bytes + geo.layer_offset;
  uint8_t* v = k + geo.kv_heads * k_bytes<Page>(geo.head_dim);
  for (int h = 0; h < geo.kv_heads; ++h) {
    write_k(Page{}, k + h * k_bytes<Page>(geo.head_dim), a.k + row * a.ld_k + h * geo.head_dim, a.ld_k, pair, slot, geo.head_dim);
    write_v(Page{}, v + h * v_bytes<Page>(geo.v_head_dim), a.v + row * a.ld_v + h * geo.v_head_dim, a.ld_v, pair, slot, geo.v_head_dim);
  }
  return pair ? 2 : 1;
}

static void kv_write(const KvWriteArgs& a, int64_t row_begin, int64_t row_end) {
  int64_t row = 0;
  for (int r = 0; r < a.n && row < row_end; row += a.q[r], ++r) {
    const int64_t from = row > row_begin ? row : row_begin;
    const int64_t to = row + a.q[r] < row_end ? row + a.q[r] : row_end;
    if (to - from == 1) {
      const int64_t position = a.start[r] + (from - row);
      if (a.geo.type == KvType::bf16) ask_rows<Bf16Page>(a, r, position);
      if (a.geo.type == KvType::i8) ask_rows<Int8Page>(a, r, position);
      if (a.geo.type == KvType::f32) ask_rows<F32Page>(a, r, position);
    }
    for (int64_t i = from; i < to;) {
      const int64_t position = a.start[r] + (i - row);
      switch (a.geo.type) {
        case KvType::bf16:
          i += write_rows<Bf16Page>(a, r, position, i, to);
          break;
        case KvType::i8:
          i += write_rows<Int8Page>(a, r, position, i, to);
          break;
        default:
          i += write_rows<F32Page>(a, r, position, i, to);
      }
    }
  }
}

}  // namespace LLMX_NS
}  // namespace llmx
