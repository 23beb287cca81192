// The C API that llmx_cpu/native.py calls through ctypes, which releases the GIL. Functions that can fail return 0 or an id, or
// -1 with the reason in llmx_error() (per thread). The kernel entry points at the end serve tests and benchmarks.
#include <cstring>
#include <exception>
#include <string>

#include "tape.h"

#define LLMX_API extern "C" __attribute__((visibility("default")))

namespace {

thread_local std::string last_error;

int fail(const char* why) {
  last_error = why;
  return -1;
}

// No exception leaves the library.
template <class F>
int guarded(F body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}

int checked(const char* wrong) { return wrong && *wrong ? fail(wrong) : 0; }

llmx::Engine* settled(llmx::Engine* engine) {
  engine->pool().settle();
  return engine;
}

}  // namespace

using llmx::Engine;
using llmx::Isa;

LLMX_API int llmx_version() { return 1; }
LLMX_API const char* llmx_error() { return last_error.c_str(); }
LLMX_API int llmx_isa_best() { return static_cast<int>(llmx::isa_best()); }

// Sizes of the structs that Python mirrors, in the order of native.py.
LLMX_API int llmx_abi_sizes(int32_t* out, int n) {
  const size_t sizes[] = {sizeof(LlmxSamplingRow), sizeof(LlmxJoined), sizeof(LlmxStepArgs), sizeof(LlmxStepResult), sizeof(LlmxOp),
                          sizeof(LlmxValue),       sizeof(LlmxPart),   sizeof(LlmxState),    sizeof(LlmxGroup),      sizeof(LlmxTape),
                          sizeof(LlmxLora)};
  const int count = static_cast<int>(sizeof sizes / sizeof sizes[0]);
  for (int i = 0; i < n && i < count; ++i) out[i] = static_cast<int32_t>(sizes[i]);
  return count;
}

LLMX_API Engine* llmx_engine_new(int isa, int threads) {
  if (isa < 0 || isa > static_cast<int>(llmx::isa_best())) {
    fail("this CPU cannot run the instruction set that was asked for");
    return nullptr;
  }
  Engine* engine = nullptr;
  guarded([&] { return engine = new Engine(static_cast<Isa>(isa), threads), 0; });
  return engine;
}
LLMX_API void llmx_engine_free(Engine* engine) { delete engine; }

LLMX_API int llmx_engine_weight(Engine* engine, int from, int to, int int8, int64_t rows, int64_t cols, const uint8_t* data, int64_t row_bytes) {
  return guarded([&] {
    const auto source = static_cast<llmx::WeightType>(from), target = static_cast<llmx::WeightType>(to);
    if (source != target && target != llmx::WeightType::f32) return fail("a weight is packed as stored or as f32");
    if (from < 0 || from >= llmx::kWeightTypes) return fail("unknown type of weight");
    if (llmx::is_quantised(source) && cols % llmx::block_elements(source)) {
      return fail(llmx::block_elements(source) == llmx::kBlock ? "the columns of a quantised weight are not a multiple of 32"
                                                               : "the columns of a weight in a K type are not a multiple of 256");
    }
    return engine->add_weight(source, target, int8 != 0, rows, cols, data, row_bytes);
  });
}
LLMX_API void llmx_engine_communicator(Engine* engine, llmx::Communicator* one) { engine->set_communicator(one); }
LLMX_API void llmx_engine_fine_positions(Engine* engine, int n) { engine->set_fine_positions(n); }
LLMX_API int llmx_engine_vector(Engine* engine, const float* data, int64_t n) {
  return guarded([&] { return engine->add_vector(data, n); });
}
LLMX_API int llmx_engine_tape(Engine* engine, const LlmxTape* tape) {
  return guarded([&] { return checked(engine->set_tape(*tape)); });
}
LLMX_API int llmx_engine_draft_tape(Engine* engine, const LlmxTape* tape) {
  return guarded([&] { return checked(engine->set_draft_tape(*tape)); });
}
LLMX_API void llmx_engine_hidden(Engine* engine, int group, int64_t offset, int64_t width) { engine->set_hidden(group, offset, width); }
LLMX_API int llmx_engine_draft(Engine* engine, const LlmxDraftArgs* rows) {
  return guarded([&] { return checked(settled(engine)->draft(*rows)); });
}
LLMX_API int64_t llmx_kv_layer_bytes(const LlmxState* state) {
  return llmx::kv_layer_bytes({static_cast<llmx::KvType>(state->type), state->kv_heads, state->head_dim, state->v_head_dim, 0, 0});
}
LLMX_API int llmx_engine_lora(Engine* engine, int slot, const LlmxLora* parts, int n) {
  return guarded([&] { return checked(settled(engine)->set_lora(slot, parts, n)); });
}
LLMX_API int llmx_engine_kv(Engine* engine, const LlmxGroup* groups, int n_groups, const LlmxState* states, int n_states) {
  return guarded([&] { return checked(engine->allocate(groups, n_groups, states, n_states)); });
}
// All functions of an engine but these two wait until no started step runs.
LLMX_API int llmx_engine_start(Engine* engine, const LlmxStepArgs* args, LlmxStepResult* result) {
  return guarded([&] { return checked(engine->start(*args, result)); });
}
LLMX_API int llmx_engine_wait(Engine* engine) {
  return guarded([&] { return checked(engine->wait()); });
}
LLMX_API int llmx_engine_step(Engine* engine, const LlmxStepArgs* args, LlmxStepResult* result, int finish) {
  return guarded([&] { return checked(settled(engine)->step(*args, result, finish != 0)); });
}
LLMX_API int llmx_engine_finish(Engine* engine, const LlmxStepArgs* args, LlmxStepResult* result, const float* logits) {
  return guarded([&] { return checked(settled(engine)->finish_step(*args, result, logits)); });
}
LLMX_API int llmx_engine_logits(Engine* engine, const LlmxStepArgs* args, int begin, int end, float* out) {
  return guarded([&] { return checked(settled(engine)->head_logits(*args, begin, end, out)); });
}
LLMX_API int llmx_engine_token_types(Engine* engine, const int32_t* types, int n) {
  return guarded([&] { return checked(settled(engine)->set_token_types(types, n)); });
}
LLMX_API const float* llmx_engine_value(Engine* engine, int value) { return settled(engine)->value_rows(value); }
LLMX_API uint8_t* llmx_engine_pages(Engine* engine, int group) { return settled(engine)->pages(group); }
LLMX_API int64_t llmx_engine_weight_bytes(Engine* engine) { return static_cast<int64_t>(engine->weight_bytes()); }
// Nanoseconds spent in the ops of each kind (LlmxOpKind) so far; returns how many kinds there are.
LLMX_API int llmx_engine_op_ns(Engine* engine, int64_t* out, int room) {
  for (int i = 0; i < room && i < llmx::kOpKinds; ++i) out[i] = settled(engine)->op_ns()[i];
  return llmx::kOpKinds;
}
LLMX_API int64_t llmx_engine_phases(Engine* engine) { return settled(engine)->pool().phases(); }
// What the executor keeps of a slot, for check_slots: history into out (at most room), returns its length or -1 for a free slot.
LLMX_API int llmx_engine_slot(Engine* engine, int slot, int32_t* out, int room) {
  if (slot < 0 || slot >= engine->slots().size() || !engine->slots().at(slot).used) return -1;
  const auto& history = engine->slots().at(slot).history;
  const int n = static_cast<int>(history.size());
  if (out && room > 0) std::memcpy(out, history.data(), static_cast<size_t>(n < room ? n : room) * 4);
  return n;
}
LLMX_API int llmx_engine_block_row(Engine* engine, int group, int slot, int32_t* out, int room) {
  const int64_t stride = engine->slots().stride(group);
  const int n = static_cast<int>(stride < room ? stride : room);
  std::memcpy(out, engine->slots().blocks(group) + slot * stride, static_cast<size_t>(n) * 4);
  return static_cast<int>(stride);
}

// ------------------------------------------------------------------------------------------- kernels, for tests and benchmarks

LLMX_API int llmx_test_linear(Engine* engine, const LlmxPart* parts, int n, const float* x, int64_t m, int64_t k, float* y, int64_t ldy, const float* residual,
                              int act_rows, const uint8_t* fine) {
  return guarded([&] {
    // Room for activations comes with a tape; a test has none.
    LlmxTape tape{};
    tape.max_tokens = act_rows;
    tape.act_mult = 1;
    tape.act_width = static_cast<int32_t>(k);
    if (act_rows > 0) engine->set_tape(tape);
    llmx::FloatMode mode;
    const llmx::Pool::Turn turn(engine->pool());
    engine->pool().wake();
    engine->set_fine_rows(fine, 1);
    engine->linear(parts, n, engine->input_of(parts, n, x, m, k, nullptr, llmx::LowPlane::all), y, ldy, residual);
    return 0;
  });
}
LLMX_API int llmx_test_unpack_row(Engine* engine, int weight, int64_t row, float* out) {
  llmx::unpack_row(engine->weight(weight), row, out);
  return 0;
}
LLMX_API int llmx_test_norm(int isa, int kind, float eps, int eps_floor, const float* weight, const float* bias, const float* x, const float* gate,
                            int gate_after, float* y, int64_t rows, int64_t width, int64_t groups) {
  const llmx::NormParams params{static_cast<llmx::NormKind>(kind), eps, eps_floor != 0, weight, bias};
  llmx::row_kernels(static_cast<Isa>(isa)).norm({params, x, gate, gate_after != 0, y, width, groups}, 0, rows);
  return 0;
}
LLMX_API int llmx_test_act(int isa, int kind, int mul, const float* x, float* y, int64_t rows, int64_t width) {
  const auto& kernels = llmx::row_kernels(static_cast<Isa>(isa));
  if (mul) {
    kernels.act_mul(static_cast<llmx::ActKind>(kind), x, y, width, 0, rows);
  } else {
    kernels.act(static_cast<llmx::ActKind>(kind), x, y, rows * width);
  }
  return 0;
}
LLMX_API int llmx_test_unary(int isa, int kind, float value, const float* x, float* y, int64_t n) {
  llmx::row_kernels(static_cast<Isa>(isa)).unary(static_cast<llmx::UnaryKind>(kind), value, x, y, n);
  return 0;
}
LLMX_API int llmx_test_softmax(int isa, const float* x, float* y, int64_t rows, int64_t width) {
  llmx::row_kernels(static_cast<Isa>(isa)).softmax(x, y, width, 0, rows);
  return 0;
}
LLMX_API int llmx_test_rope(int isa, const float* table, int rotary_dim, int pairs, const int32_t* positions, const float* x, float* y, int64_t rows, int heads,
                            int head_dim) {
  llmx::row_kernels(static_cast<Isa>(isa)).rope({table, rotary_dim, pairs != 0}, positions, x, y, heads, head_dim, 0, rows);
  return 0;
}
