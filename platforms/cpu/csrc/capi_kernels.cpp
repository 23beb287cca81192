// Single kernels for callers with an executor and tensors of their own (llmx_cpu/for_torch/native.py): an Engine that has weights and a
// pool but no Program. Every call ends with the pool parked: the caller's threads want the processors until the next one.
#include <cstdint>
#include <exception>
#include <vector>

#include "tape.h"

#define LLMX_API extern "C" __attribute__((visibility("default")))

extern "C" {
struct LlmxAttention {  // native.py mirrors this
  int32_t kv_type, kv_heads, head_dim, v_head_dim, q_heads, n, window, bidirectional;
  int64_t block_bytes, stride;
  const uint8_t* pages;  // of one layer, in the layout of attention.h
  const int32_t *table, *slot, *q, *start;
  const float *query, *sinks, *alibi;
  float* out;
  int64_t ld_query, ld_out;
  float scale, soft_cap;
};
}

namespace {

class Awake {  // the pool's workers spin while one of these lives
 public:
  explicit Awake(llmx::Pool& pool) : pool_(pool) { pool_.wake(); }
  ~Awake() { pool_.park(); }
  Awake(const Awake&) = delete;
  Awake& operator=(const Awake&) = delete;

 private:
  llmx::Pool& pool_;
};

}  // namespace

// Room for inputs of so many rows and columns in every form that packed weights ask for. Null, or what is wrong.
LLMX_API const char* llmx_kernel_room(llmx::Engine* engine, int rows, int columns) {
  try {
    LlmxTape tape{};
    tape.max_tokens = rows;
    tape.act_mult = 1;
    tape.act_width = columns;
    return engine->set_tape(tape);
  } catch (const std::exception&) {
    return "no memory for the inputs of products";
  }
}

// y [m, ldy] = x [m, k] times the packed weights of each part, at the part's column, plus its bias; within llmx_kernel_room.
LLMX_API void llmx_kernel_linear(llmx::Engine* engine, const LlmxPart* parts, int n, const float* x, int64_t m, int64_t k, float* y, int64_t ldy) {
  llmx::FloatMode mode;
  Awake awake(engine->pool());
  engine->set_fine_rows(nullptr, 1);
  engine->linear(parts, n, engine->input_of(parts, n, x, m, k, nullptr, llmx::LowPlane::all), y, ldy, nullptr);
}

LLMX_API const char* llmx_kernel_attention(llmx::Engine* engine, const LlmxAttention* t) {
  try {
    llmx::FloatMode mode;
    Awake awake(engine->pool());
    const llmx::AttnKernels& kernels = llmx::attn_kernels(engine->isa());
    const llmx::KvGeometry geometry = {static_cast<llmx::KvType>(t->kv_type), t->kv_heads, t->head_dim, t->v_head_dim, t->block_bytes, 0};
    const llmx::AttnArgs args = {geometry, t->pages, t->table, t->stride, t->n, t->slot, t->q, t->start, t->query, t->out, t->ld_query, t->ld_out, t->q_heads,
                                 t->scale, t->soft_cap, t->window, t->bidirectional != 0, t->sinks, t->alibi};
    const llmx::AttnPlan plan = kernels.plan(args, engine->pool().threads());
    const size_t stride = plan.thread_bytes / 64 * 8 + 8;  // in 8 bytes, so that threads write to different lines
    std::vector<uint64_t> items(plan.items_bytes / 8 + 1), partials(plan.partial_bytes / 8 + 1), scratch(stride * engine->pool().threads());
    kernels.prepare(args, plan, items.data());
    engine->pool().over(plan.units, 1, [&](int64_t begin, int64_t end, int worker) {
      kernels.run(args, plan, items.data(), begin, end, partials.data(), scratch.data() + stride * worker);
    });
    engine->pool().over(plan.merge_units, 4, [&](int64_t begin, int64_t end, int) { kernels.merge(args, plan, items.data(), begin, end, partials.data()); });
    return nullptr;
  } catch (const std::exception&) {
    return "no memory for attention";
  }
}
