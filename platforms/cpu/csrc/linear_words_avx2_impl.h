// Products of 8-bit codes for three rows and more, with AVX2; part of linear_int_impl.h. Products of eight bits by eight fill
// sixteen, so that vpmaddubsw has no room for a sum. Codes and inputs are opened to 16-bit words instead: vpmaddwd adds in 32 bits,
// exactly, and takes both planes of an int16 input at once. The integers and scales are those of the other path, so the bits are too.
//
// Words of four k lie in two lines: those of k 0 and 2, and those of k 1 and 3, which takes shifts alone to make.
#pragma once

namespace llmx {
namespace LLMX_NS {

constexpr int kWordsFrom = 3;    // rows from which opening pays
constexpr int kWordRows = 32;    // rows and
constexpr int kWordBlocks = 6;   // blocks that lie opened in L1 together,
constexpr int kWordPanels = 4;   // while these panels go by
constexpr int kWordAhead = 2;    // lines of memory asked for per block and group of rows

struct alignas(64) WordTile {  // one block of a panel
  int16_t lines[16][32];       // 2 g: k 4 g and 4 g + 2 of the sixteen channels, 2 g + 1: k 4 g + 1 and 4 g + 3
  float scale[kPanel];
};

struct alignas(64) WordBlock {  // one block of sixteen rows
  int16_t q[kTileRows][kBlock];  // of each row the pairs that meet lines 0 2 4 .., then 1 3 5 ..
  float d[kTileRows];
};

LLMX_INLINE __m256i even_bytes(__m256i v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); }
LLMX_INLINE __m256i odd_bytes(__m256i v) { return _mm256_srai_epi16(v, 8); }
LLMX_INLINE void store_words(int16_t* to, __m256i words) { _mm256_store_si256(reinterpret_cast<__m256i*>(to), words); }

template <WeightType T>
static void open_words(const uint8_t* panel, int64_t first, int64_t count, WordTile* run) {
  const __m256i sign = _mm256_set1_epi8(-128);
  for (int64_t b = first; b < first + count; ++b, ++run) {
    const PackedBlock<T> block = PackedBlock<T>::at(panel, b);
    const uint8_t* tile = block.group + quant_form(T).tile_at(block.block);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m256i codes = _mm256_xor_si256(line_half(tile, g, half), sign);
        store_words(run->lines[2 * g] + half * 16, even_bytes(codes));
        store_words(run->lines[2 * g + 1] + half * 16, odd_bytes(codes));
      }
    }
    store(run->scale, PackedBlock<T>::scale(block, 0, 0));
  }
}

// Without the low plane (two planes, not fine) the row's scale takes the factor 256.
template <int Planes>
static void open_inputs(const ActBlock<Planes>* act, int64_t rows, WordBlock* out) {
  const bool fine = Planes == 2 && act->fine;
  for (int64_t r = 0; r < rows; ++r) {
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(act->q[0][r]));
    __m256i even = even_bytes(high), odd = odd_bytes(high);
    if (fine) {
      const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(act->q[Planes - 1][r]));
      even = _mm256_add_epi16(_mm256_slli_epi16(even, 8), even_bytes(low));
      odd = _mm256_add_epi16(_mm256_slli_epi16(odd, 8), odd_bytes(low));
    }
    store_words(out->q[r], even);
    store_words(out->q[r] + 16, odd);
  }
  store(out->d, Planes == 2 && !fine ? mul(load(act->d), set1(256.0f)) : load(act->d));
}

// acc[r] += what `blocks` blocks give, for rows [row, row + MR) of a tile of rows. ahead: weights that come next.
template <int MR>
static void rows_words(const WordTile* run, const uint8_t* ahead, const WordBlock* act, int64_t blocks, int row, float (*acc)[kPanel]) {
  const int16_t* q = act->q[row];
  const float* d = act->d + row;
  for (const WordTile* end = run + blocks; run < end; ++run, ahead += kWordAhead * 64) {
#pragma GCC unroll 4
    for (int i = 0; i < kWordAhead; ++i) _mm_prefetch(reinterpret_cast<const char*>(ahead + i * 64), _MM_HINT_T0);
    __m256i sum[MR][2];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const __m256i* line = reinterpret_cast<const __m256i*>(run->lines[i]);
      const __m256i w0 = _mm256_load_si256(line), w1 = _mm256_load_si256(line + 1);
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) {
        const __m256i a = bcast32(reinterpret_cast<const int8_t*>(q + r * kBlock + (i & 1) * 16 + (i >> 1) * 2));
        const __m256i p0 = _mm256_madd_epi16(w0, a), p1 = _mm256_madd_epi16(w1, a);
        sum[r][0] = i ? _mm256_add_epi32(sum[r][0], p0) : p0;
        sum[r][1] = i ? _mm256_add_epi32(sum[r][1], p1) : p1;
        in_order(sum[r][0]);
        in_order(sum[r][1]);
      }
    }
    const F16 scale = load(run->scale);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      const __m256 da = _mm256_set1_ps(d[r]);
      F16 total = load(acc[r]);
      total.lo = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][0]), _mm256_mul_ps(scale.lo, da), total.lo);
      total.hi = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r][1]), _mm256_mul_ps(scale.hi, da), total.hi);
      store(acc[r], total);
    }
    q += sizeof(WordBlock) / sizeof(*q);
    d += sizeof(WordBlock) / sizeof(*d);
  }
}

LLMX_INLINE void tile_words(const WordTile* run, const uint8_t* ahead, int64_t ahead_bytes, const WordBlock* act, int64_t blocks, int64_t rows,
                            float (*acc)[kPanel]) {
  int64_t asked = 0;
  for (int row = 0, take; row < rows; row += take) {
    const int64_t left = rows - row;
    if (left == 5 || left == 6) {  // more than four leave the sums too few registers; that still beats two groups
      take = 6;
      rows_words<6>(run, ahead + asked, act, blocks, row, acc + row);
    } else {
      take = 4;
      rows_words<4>(run, ahead + asked, act, blocks, row, acc + row);
    }
    asked += kWordAhead * 64 * blocks;
    if (asked >= ahead_bytes) asked = 0;
  }
}

template <WeightType T, int Planes>
static void gemm_words(const GemmArgs& args, int64_t panel_begin, int64_t panel_end) {
  static_assert(kWordRows == 2 * kTileRows, "two tiles of rows");
  constexpr int64_t kBytes = quant_form(T).group() / quant_form(T).blocks();
  const int64_t blocks = args.ld;
  const auto* all = static_cast<const ActBlock<Planes>*>(args.act);
  WordBlock act[2][kWordBlocks];
  WordTile run[kWordBlocks];
  alignas(64) float acc[kWordPanels][kWordRows][kPanel];
  for (int64_t first = 0; first < args.m; first += kWordRows) {
    const int64_t rows = args.m - first < kWordRows ? args.m - first : kWordRows, second = rows - kTileRows;
    for (int64_t p = panel_begin; p < panel_end; p += kWordPanels) {
      const int64_t panels = panel_end - p < kWordPanels ? panel_end - p : kWordPanels;
      memset(acc, 0, sizeof(acc));
      for (int64_t b = 0; b < blocks; b += kWordBlocks) {
        const int64_t count = blocks - b < kWordBlocks ? blocks - b : kWordBlocks;
        for (int64_t t = 0; t * kTileRows < rows; ++t) {
          for (int64_t i = 0; i < count; ++i) open_inputs<Planes>(all + (first / kTileRows + t) * blocks + b + i, kTileRows, act[t] + i);
        }
        for (int64_t i = 0; i < panels; ++i) {
          open_words<T>(args.weight->data + (p + i) * args.weight->panel_bytes, b, count, run);
          // What is opened next: the same blocks of the next panel, or the next blocks of the first.
          const uint8_t* ahead = args.weight->data + (i + 1 < panels ? (p + i + 1) * args.weight->panel_bytes + b * kBytes : p * args.weight->panel_bytes + (b + count) * kBytes);
          tile_words(run, ahead, count * kBytes, act[0], count, second < 0 ? rows : kTileRows, acc[i]);
          if (second > 0) tile_words(run, ahead + count * kBytes / 2, count * kBytes, act[1], count, second, acc[i] + kTileRows);
        }
      }
      for (int64_t i = 0; i < panels; ++i) {
        for (int64_t r = 0; r < rows; ++r) store_row(args, first + r, p + i, load(acc[i][r]));
      }
    }
  }
}

}  // namespace LLMX_NS
}  // namespace llmx
