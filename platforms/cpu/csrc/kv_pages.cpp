// Pages as bytes: sizes, zeroing, copying.
#include <cstring>

#include "attention.h"

namespace llmx {

int64_t kv_layer_bytes(const KvGeometry& geo) {
  const int64_t element = geo.type == KvType::i8 ? 1 : (geo.type == KvType::bf16 ? 2 : 4);
  const int64_t scales = geo.type == KvType::i8 ? 2 * kBlockTokens * 4 : 0;  // of K and of V
  return geo.kv_heads * ((geo.head_dim + geo.v_head_dim) * kBlockTokens * element + scales);
}

void kv_zero_block(uint8_t* pages, const KvGeometry& geo, int32_t block) {
  std::memset(pages + block * geo.block_bytes, 0, static_cast<size_t>(geo.block_bytes));
}

void kv_copy_block(uint8_t* pages, const KvGeometry& geo, int32_t src, int32_t dst) {
  std::memcpy(pages + dst * geo.block_bytes, pages + src * geo.block_bytes, static_cast<size_t>(geo.block_bytes));
}

}  // namespace llmx
