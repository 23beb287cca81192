// From the rows of a checkpoint to panels, and one row back. Layouts: linear.h.
#include <cstring>

#define LLMX_LEVEL 0
#include "linear.h"
#include "simd.h"

namespace llmx {
namespace {

using isa_portable::bf16_to_float;
using isa_portable::f16_to_float;

int64_t tile_bytes(WeightType type) { return type == WeightType::q8_0 ? 512 : 256; }
int64_t scale_bytes(WeightType type) { return type == WeightType::q4_1 ? 128 : 64; }
int64_t group_bytes(WeightType type) { return scale_bytes(type) + 2 * tile_bytes(type); }
int64_t source_block_bytes(WeightType type) { return type == WeightType::q4_0 ? 18 : (type == WeightType::q4_1 ? 20 : 34); }

uint16_t half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bits;
}

// One 32-element block of a checkpoint row.
void decode_block(WeightType type, const uint8_t* block, float* out) {
  const float d = f16_to_float(half_at(block));
  if (type == WeightType::q8_0) {
    for (int i = 0; i < kBlock; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
    return;
  }
  const bool minimum = type == WeightType::q4_1;
  const float m = minimum ? f16_to_float(half_at(block + 2)) : 0.0f;
  const uint8_t* q = block + (minimum ? 4 : 2);
  for (int i = 0; i < kBlock; ++i) {
    const int value = i < 16 ? (q[i] & 15) : (q[i - 16] >> 4);
    out[i] = minimum ? d * static_cast<float>(value) + m : d * static_cast<float>(value - 8);
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

void pack_quantised(WeightType type, const uint8_t* row, int64_t blocks, int channel, uint8_t* panel) {
  const int64_t step = source_block_bytes(type);
  for (int64_t b = 0; b < blocks; ++b, row += step) {
    uint8_t* group = panel + (b / 2) * group_bytes(type);
    const int64_t half = b & 1;
    std::memcpy(group + half * 32 + channel * 2, row, 2);
    if (type == WeightType::q4_1) std::memcpy(group + 64 + half * 32 + channel * 2, row + 2, 2);
    uint8_t* tile = group + scale_bytes(type) + half * tile_bytes(type) + channel * 4;
    const uint8_t* q = row + (type == WeightType::q4_1 ? 4 : 2);
    if (type == WeightType::q8_0) {
      for (int g = 0; g < 8; ++g) {
        for (int j = 0; j < 4; ++j) tile[g * 64 + j] = q[g * 4 + j] ^ 0x80;
      }
    } else {
      for (int p = 0; p < 4; ++p) std::memcpy(tile + p * 64, q + p * 4, 4);
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
  float values[kBlock];
  for (int64_t b = 0; b < cols / kBlock; ++b) {
    decode_block(from, row + b * source_block_bytes(from), values);
    for (int i = 0; i < kBlock; ++i) out[(b * kBlock + i) * kPanel] = values[i];
  }
}

void unpack_quantised(const PackedWeight& weight, const uint8_t* panel, int channel, float* out) {
  const WeightType type = weight.type;
  for (int64_t b = 0; b < weight.cols / kBlock; ++b, out += kBlock) {
    const uint8_t* group = panel + (b / 2) * group_bytes(type);
    const int64_t half = b & 1;
    const float d = f16_to_float(half_at(group + half * 32 + channel * 2));
    const float m = type == WeightType::q4_1 ? f16_to_float(half_at(group + 64 + half * 32 + channel * 2)) : 0.0f;
    const uint8_t* tile = group + scale_bytes(type) + half * tile_bytes(type) + channel * 4;
    for (int i = 0; i < kBlock; ++i) {
      const int at = (i / 4) * 64 + (i & 3);
      if (type == WeightType::q8_0) {
        out[i] = d * static_cast<float>(static_cast<int>(tile[at]) - 128);
        continue;
      }
      const int value = i < 16 ? (tile[at] & 15) : (tile[at - 256] >> 4);
      out[i] = type == WeightType::q4_1 ? d * static_cast<float>(value) + m : d * static_cast<float>(value - 8);
    }
  }
}

}  // namespace

bool is_quantised(WeightType type) { return type == WeightType::q4_0 || type == WeightType::q4_1 || type == WeightType::q8_0; }

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
      return (cols / kBlock + 1) / 2 * group_bytes(type);
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
        pack_quantised(from, row, cols / kBlock, c, panel);
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
