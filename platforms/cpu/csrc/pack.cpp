// From the rows of a checkpoint to panels, and one row back. Layouts: linear.h.
#include <cstring>

#define LLMX_LEVEL 0
#include "linear_quant.h"
#include "simd.h"

namespace llmx {
namespace {

using isa_portable::bf16_to_float;
using isa_portable::f16_to_float;

int64_t source_block_bytes(WeightType type) {
  switch (type) {
    case WeightType::q4_0:
      return 18;
    case WeightType::q4_1:
      return 20;
    case WeightType::q5_0:
      return 22;
    case WeightType::q5_1:
      return 24;
    case WeightType::q2_k:
      return 84;
    case WeightType::q3_k:
      return 110;
    case WeightType::q4_k:
      return 144;
    case WeightType::q5_k:
      return 176;
    case WeightType::q6_k:
      return 210;
    default:  // q8_0
      return 34;
  }
}

uint16_t half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bits;
}

// One block of a checkpoint row, as ggml-common.h lays it out: codes as a panel has them, f16 scales, integer factors of wide types.
struct Decoded {
  uint8_t code[256];
  uint16_t d, m;        // m: dmin of a wide type
  int8_t factor[2][16];  // scale and negated minimum of each 32 or 16 elements
};

// Codes of `bits` bits from `bytes` bytes: first the lowest bits of each byte, then the next ones.
void spread(const uint8_t* q, int bytes, int bits, uint8_t* code) {
  const int mask = (1 << bits) - 1;
  for (int shift = 0; shift < 8; shift += bits) {
    for (int i = 0; i < bytes; ++i) *code++ = static_cast<uint8_t>(q[i] >> shift & mask);
  }
}

// The 6-bit factors of q4_K and q5_K: eight scales, eight minima in 12 bytes.
void factors_k4(const uint8_t* p, Decoded* out) {
  for (int i = 0; i < 8; ++i) {
    const int scale = i < 4 ? p[i] & 63 : (p[i + 4] & 15) | (p[i - 4] >> 6 << 4);
    const int minimum = i < 4 ? p[i + 4] & 63 : (p[i + 4] >> 4) | (p[i] >> 6 << 4);
    out->factor[0][i] = static_cast<int8_t>(scale);
    out->factor[1][i] = static_cast<int8_t>(-minimum);
  }
}

void decode_legacy(WeightType type, const uint8_t* block, Decoded* out) {
  const bool minimum = quant_form(type).minimum;
  out->d = half_at(block);
  out->m = minimum ? half_at(block + 2) : 0;
  const uint8_t* q = block + (minimum ? 4 : 2);
  if (type == WeightType::q8_0) {
    for (int i = 0; i < kBlock; ++i) out->code[i] = q[i] ^ 0x80;
    return;
  }
  const bool fifth = quant_form(type).high != 0;
  spread(q + (fifth ? 4 : 0), 16, 4, out->code);
  for (int i = 0; fifth && i < kBlock; ++i) out->code[i] = static_cast<uint8_t>(out->code[i] | (q[i / 8] >> (i & 7) & 1) << 4);
}

void decode_wide(WeightType type, const uint8_t* block, Decoded* out) {
  uint8_t* code = out->code;
  switch (type) {
    case WeightType::q2_k:  // scales 16, q 64, d, dmin
      for (int i = 0; i < 16; ++i) out->factor[0][i] = block[i] & 15, out->factor[1][i] = static_cast<int8_t>(-(block[i] >> 4));
      for (int half = 0; half < 2; ++half) spread(block + 16 + half * 32, 32, 2, code + half * 128);
      out->d = half_at(block + 80), out->m = half_at(block + 82);
      break;
    case WeightType::q3_k:  // high bits 32, q 64, factors 12, d
      for (int half = 0; half < 2; ++half) spread(block + 32 + half * 32, 32, 2, code + half * 128);
      for (int i = 0; i < 256; ++i) code[i] = static_cast<uint8_t>(code[i] | (block[i & 31] >> (i >> 5) & 1) << 2);
      for (int i = 0; i < 16; ++i) {
        const int low = i < 8 ? block[96 + i] & 15 : block[96 + i - 8] >> 4, high = block[104 + (i & 3)] >> (i >> 2) * 2 & 3;
        out->factor[0][i] = static_cast<int8_t>((low | high << 4) - 32);
      }
      out->d = half_at(block + 108), out->m = 0;
      break;
    case WeightType::q6_k:  // low bits 128, high bits 64, factors 16, d
      for (int half = 0; half < 2; ++half) {
        uint8_t top[128];
        spread(block + half * 64, 64, 4, code + half * 128);
        spread(block + 128 + half * 32, 32, 2, top);
        for (int i = 0; i < 128; ++i) code[half * 128 + i] = static_cast<uint8_t>(code[half * 128 + i] | top[i] << 4);
      }
      std::memcpy(out->factor[0], block + 192, 16);
      out->d = half_at(block + 208), out->m = 0;
      break;
    default: {  // q4_K, q5_K: d, dmin, factors 12, (high bits 32), q 128
      const bool fifth = type == WeightType::q5_k;
      out->d = half_at(block), out->m = half_at(block + 2);
      factors_k4(block + 4, out);
      for (int quarter = 0; quarter < 4; ++quarter) spread(block + (fifth ? 48 : 16) + quarter * 32, 32, 4, code + quarter * 64);
      for (int i = 0; fifth && i < 256; ++i) code[i] = static_cast<uint8_t>(code[i] | (block[16 + (i & 31)] >> (i >> 5) & 1) << 4);
    }
  }
}

void decode(WeightType type, const uint8_t* block, Decoded* out) {
  return quant_form(type).wide ? decode_wide(type, block, out) : decode_legacy(type, block, out);
}

// The n values of a block: each product and sum rounded to f32, products of wide scales are exact.
void values_of(WeightType type, const Decoded& block, int n, float* out) {
  const QuantForm form = quant_form(type);
  const float d = f16_to_float(block.d), m = f16_to_float(block.m);
  const int zero = form.minimum ? 0 : 1 << form.zero_shift, span = kBlock / form.subs;
  for (int i = 0; i < n; ++i) {
    const float scale = form.wide ? d * static_cast<float>(block.factor[0][i / span]) : d;
    const float value = scale * static_cast<float>(block.code[i] - zero);
    out[i] = form.minimum ? value + (form.wide ? m * static_cast<float>(block.factor[1][i / span]) : m) : value;
  }
}

float element(WeightType type, const uint8_t* row, int64_t k) {
  if (type == WeightType::f32) {
    float value;
    std::memcpy(&value, row + 4 * k, 4);
    return value;
  }
  const uint16_t bits = half_at(row + 2 * k);
  return type == WeightType::f16 ? f16_to_float(bits) : bf16_to_float(bits);
}

void pack_tile(QuantForm form, const uint8_t* code, int channel, uint8_t* tile) {
  const int low = form.low == 8 ? 255 : (1 << form.low) - 1;
  const int lines = form.low;  // of 64 bytes: 8 lines of codes in `low` bits each
  for (int k = 0; k < kBlock; ++k) {
    const int line = k / 4, at = channel * 4 + (k & 3);
    tile[line % lines * 64 + at] = static_cast<uint8_t>(tile[line % lines * 64 + at] | (code[k] & low) << line / lines * form.low);
    uint8_t* top = tile + form.low * 64;
    const int high = form.low == 8 ? 0 : code[k] >> form.low;
    if (form.high == 1) top[line * 8 + at / 8] = static_cast<uint8_t>(top[line * 8 + at / 8] | high << (at & 7));
    if (form.high == 2) top[(line & 1) * 64 + at] = static_cast<uint8_t>(top[(line & 1) * 64 + at] | high << (line >> 1) * 2);
  }
}

// Nibbles whose order in the checkpoint is that of the panel: without a way through single codes.
void pack_nibbles(const uint8_t* q, int channel, uint8_t* tile) {
  for (int p = 0; p < 4; ++p) std::memcpy(tile + p * 64 + channel * 4, q + p * 4, 4);
}

void pack_bytes(const uint8_t* q, int channel, uint8_t* tile) {
  for (int g = 0; g < 8; ++g) {
    uint32_t four;
    std::memcpy(&four, q + g * 4, 4);
    four ^= 0x80808080u;
    std::memcpy(tile + g * 64 + channel * 4, &four, 4);
  }
}

void pack_quantised(WeightType type, const uint8_t* row, int64_t cols, int channel, uint8_t* panel) {
  const QuantForm form = quant_form(type);
  const int64_t elements = block_elements(type), step = source_block_bytes(type);
  Decoded block;
  for (int64_t k = 0; k < cols; k += elements, row += step) {
    uint8_t* group = panel + k / (form.blocks() * kBlock) * form.group();
    const int first = static_cast<int>(k / kBlock % form.blocks());
    const int64_t scale = first * 32 + channel * 2;  // of a wide type first is 0
    uint8_t* tile = group + form.tile_at(first);
    if (form.low + form.high == 4 && !form.wide) {
      std::memcpy(group + scale, row, 2);
      if (form.minimum) std::memcpy(group + 64 + scale, row + 2, 2);
      pack_nibbles(row + 2 * form.parts(), channel, tile);
    } else if (type == WeightType::q8_0) {
      std::memcpy(group + scale, row, 2);
      pack_bytes(row + 2, channel, tile);
    } else {
      decode(type, row, &block);
      std::memcpy(group + scale, &block.d, 2);
      if (form.minimum) std::memcpy(group + (form.wide ? 32 : 64) + scale, &block.m, 2);
      for (int b = 0; b * kBlock < elements; ++b) {
        pack_tile(form, block.code + b * kBlock, channel, tile + b * form.tile());
        for (int i = 0; form.wide && i < form.subs * form.parts(); ++i) {
          const int sub = i / form.parts(), part = i % form.parts();
          group[form.factors(b, sub, part) + channel] = static_cast<uint8_t>(block.factor[part][b * form.subs + sub]);
        }
      }
    }
  }
}

void pack_dense(WeightType type, const uint8_t* row, int64_t cols, int channel, uint8_t* panel) {
  switch (type) {
    case WeightType::f32:
      for (int64_t k = 0; k < cols; ++k) std::memcpy(panel + (k * kPanel + channel) * 4, row + 4 * k, 4);
      break;
    case WeightType::f16:
      for (int64_t k = 0; k < cols; ++k) std::memcpy(panel + (k * kPanel + channel) * 2, row + 2 * k, 2);
      break;
    default:  // bf16
      for (int64_t k = 0; k < cols; ++k) std::memcpy(panel + ((k / 2 * kPanel + channel) * 2 + (k & 1)) * 2, row + 2 * k, 2);
  }
}

void pack_as_f32(WeightType from, const uint8_t* row, int64_t cols, int channel, uint8_t* panel) {
  float* out = reinterpret_cast<float*>(panel) + channel;
  if (!is_quantised(from)) {
    for (int64_t k = 0; k < cols; ++k) out[k * kPanel] = element(from, row, k);
    return;
  }
  const int n = static_cast<int>(block_elements(from));
  Decoded block;
  float values[256];
  for (int64_t k = 0; k < cols; k += n, row += source_block_bytes(from)) {
    decode(from, row, &block);
    values_of(from, block, n, values);
    for (int i = 0; i < n; ++i) out[(k + i) * kPanel] = values[i];
  }
}

void unpack_tile(QuantForm form, const uint8_t* tile, int channel, uint8_t* code) {
  const int low = form.low == 8 ? 255 : (1 << form.low) - 1, lines = form.low;
  const uint8_t* top = tile + form.low * 64;
  for (int k = 0; k < kBlock; ++k) {
    const int line = k / 4, at = channel * 4 + (k & 3);
    int value = tile[line % lines * 64 + at] >> line / lines * form.low & low;
    if (form.high == 1) value |= (top[line * 8 + at / 8] >> (at & 7) & 1) << form.low;
    if (form.high == 2) value |= (top[(line & 1) * 64 + at] >> (line >> 1) * 2 & 3) << form.low;
    code[k] = static_cast<uint8_t>(value);
  }
}

void unpack_quantised(const PackedWeight& weight, const uint8_t* panel, int channel, float* out) {
  const QuantForm form = quant_form(weight.type);
  const int64_t n = block_elements(weight.type);
  Decoded block;
  for (int64_t k = 0; k < weight.cols; k += n, out += n) {
    const uint8_t* group = panel + k / (form.blocks() * kBlock) * form.group();
    const int first = static_cast<int>(k / kBlock % form.blocks());
    const int64_t scale = first * 32 + channel * 2;
    block.d = half_at(group + scale);
    block.m = form.minimum ? half_at(group + (form.wide ? 32 : 64) + scale) : 0;
    for (int b = 0; b * kBlock < n; ++b) {
      unpack_tile(form, group + form.tile_at(first + b), channel, block.code + b * kBlock);
      for (int i = 0; form.wide && i < form.subs * form.parts(); ++i) {
        const int sub = i / form.parts(), part = i % form.parts();
        block.factor[part][b * form.subs + sub] = static_cast<int8_t>(group[form.factors(b, sub, part) + channel]);
      }
    }
    values_of(weight.type, block, static_cast<int>(n), out);
  }
}

}  // namespace

bool is_quantised(WeightType type) { return type > WeightType::bf16; }
int64_t block_elements(WeightType type) { return quant_form(type).wide ? 256 : kBlock; }

ActType act_type(WeightType type, bool int8) {
  if (is_quantised(type)) return int8 ? ActType::i8 : ActType::i16;
  return type == WeightType::bf16 ? ActType::bf16 : ActType::f32;
}

int64_t act_ld(ActType type, int64_t k) {
  if (type == ActType::i8 || type == ActType::i16) return k / kBlock;
  return type == ActType::bf16 ? (k + 1) / 2 * 2 : k;
}

int64_t act_tile_bytes(ActType type, int64_t k) {
  const int64_t ld = act_ld(type, k);
  switch (type) {
    case ActType::i8:
      return ld * static_cast<int64_t>(sizeof(ActBlock<1>));
    case ActType::i16:
      return ld * static_cast<int64_t>(sizeof(ActBlock<2>));
    case ActType::bf16:
      return kTileRows * ld * 2;
    default:
      return kTileRows * ld * 4;
  }
}

int64_t act_bytes(ActType type, int64_t m, int64_t k) { return (m + kTileRows - 1) / kTileRows * act_tile_bytes(type, k); }

int64_t panel_bytes(WeightType type, int64_t cols) {
  switch (type) {
    case WeightType::f32:
      return cols * kPanel * 4;
    case WeightType::f16:
      return (cols * kPanel * 2 + 63) / 64 * 64;
    case WeightType::bf16:
      return (cols + 1) / 2 * kPanel * 4;
    default:
      return (cols / kBlock + quant_form(type).blocks() - 1) / quant_form(type).blocks() * quant_form(type).group();
  }
}

void pack_panels(WeightType from, WeightType to, int64_t rows, int64_t cols, const uint8_t* source, int64_t row_bytes, uint8_t* target,
                 int64_t begin, int64_t end) {
  const int64_t bytes = panel_bytes(to, cols);
  for (int64_t p = begin; p < end; ++p) {
    uint8_t* panel = target + p * bytes;
    std::memset(panel, 0, static_cast<size_t>(bytes));
    for (int c = 0; c < kPanel && p * kPanel + c < rows; ++c) {
      const uint8_t* row = source + (p * kPanel + c) * row_bytes;
      if (from != to) {
        pack_as_f32(from, row, cols, c, panel);
      } else if (is_quantised(from)) {
        pack_quantised(from, row, cols, c, panel);
      } else {
        pack_dense(from, row, cols, c, panel);
      }
    }
  }
}

void unpack_row(const PackedWeight& weight, int64_t row, float* out) {
  const uint8_t* panel = weight.data + row / kPanel * weight.panel_bytes;
  const int c = static_cast<int>(row % kPanel);
  switch (weight.type) {
    case WeightType::f32:
      for (int64_t k = 0; k < weight.cols; ++k) std::memcpy(out + k, panel + (k * kPanel + c) * 4, 4);
      break;
    case WeightType::f16:
      for (int64_t k = 0; k < weight.cols; ++k) out[k] = f16_to_float(half_at(panel + (k * kPanel + c) * 2));
      break;
    case WeightType::bf16:
      for (int64_t k = 0; k < weight.cols; ++k) out[k] = bf16_to_float(half_at(panel + ((k / 2 * kPanel + c) * 2 + (k & 1)) * 2));
      break;
    default:
      unpack_quantised(weight, panel, c, out);
  }
}

}  // namespace llmx
