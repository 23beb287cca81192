// The tape: a Program lowered to POD records, and the Engine that runs them. Python writes the records once (llmx_cpu/lower);
// a step is one call. Values are f32 rows in one arena; a slot of the arena is used again when its value is dead.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention.h"
#include "collective.h"
#include "draft.h"
#include "linear.h"
#include "lora.h"
#include "pool.h"
#include "rowwise.h"
#include "sampler.h"
#include "slots.h"
#include "step.h"

extern "C" {

enum LlmxOpKind : int32_t {
  LLMX_EMBED = 0,      // in -; w0 weight; i0 0: rows of the ids, 1: of the positions, 2: of the token types, i1 added to them; f0 scale;
                       // i2 1 + its part, by which adapters know it, or 0
  LLMX_LINEAR = 1,     // in x, residual or -1; i0 first part, i1 parts, i2 input width; a norm of x before: w0 weight, w1 bias,
                       // i3 kind + 1 (0: none), i4 eps_floor; f0 eps. i7: x comes from attention (set_tape finds it)
  LLMX_NORM = 2,       // in x, gate or -1; w0 weight, w1 bias; i0 kind, i1 groups, i2 gate_after, i3 eps_floor; f0 eps
  LLMX_ACT = 3,        // in x; i0 kind
  LLMX_ACT_MUL = 4,    // in x; i0 kind
  LLMX_BINARY = 5,     // in x, y; i0 kind, i1 form: 0 equal shapes, 1 y is the vector w0, 2 y [rows, 1]
  LLMX_UNARY = 6,      // in x; i0 kind; f0 value
  LLMX_SOFTMAX = 7,    // in x
  LLMX_QKV = 8,        // in x; out q, k, v, gate; w0 q norm, w1 k norm, w2 rope table, w3 q scale, w4 q norm bias, w5 k norm bias
                       // i0 q heads, i1 kv heads, i2 head_dim, i3 v_head_dim, i4 norm span, i5 norm before rope, i6 v_norm, i7 norm kind,
                       // i8 rotary_dim, i9 pairs, i10 rope; f0 clip, f1 eps
  LLMX_ROPE = 9,       // in x; w0 table; i0 heads, i1 head_dim, i2 rotary_dim, i3 pairs
  LLMX_KV_WRITE = 10,  // in k, v; i0 state
  LLMX_ATTENTION = 11, // in q; w0 sinks, w1 alibi; i0 state, i1 q heads, i2 window, i3 bidirectional; f0 scale, f1 soft cap
  LLMX_ROWS = 12,      // in x (T rows): the head rows
  LLMX_SPLIT = 13,     // in x; out pieces (up to 4)
  LLMX_CONCAT = 14,    // in pieces (up to 4)
  LLMX_COPY = 15,      // in x
  LLMX_POSITION_SCALE = 16,  // in x; w0 table; heads in mult
  LLMX_MLP = 17,       // as LLMX_LINEAR, three parts gate, up, down: y = down(act(gate) * up) + residual; i5 act kind, i6 gate rows
  LLMX_HIDDEN = 18,    // draft tapes: rows that were kept, of the first tape or of the run before (LlmxDraftArgs.behind)
  LLMX_KEEP = 19,      // in x: keep the rows for LLMX_HIDDEN; in the first tape token rows, which go to the blocks of their requests
  LLMX_GUESS = 20,     // draft tapes: in x (head rows): the most likely id of each; w0 ids that columns stand for, or -1; i0 which guess of the run
  LLMX_COLLECTIVE = 21,  // in x; i0 0: the sum of all ranks' rows, 1: their rows side by side; i1 ranks
};

struct LlmxOp {
  int32_t kind;
  int32_t rows;   // 0: once for all token rows; 1: per block of head rows
  int32_t mult;   // rows of the op per token or head row (e.g. heads of a per-head norm)
  int32_t width;  // elements of one such row of the first output
  int32_t in[4], out[4];  // values, -1 absent
  int32_t w[6];           // vectors (embed: a weight), -1 absent
  int32_t i[12];
  float f[4];
};

struct LlmxValue {
  int64_t offset;  // floats, in the arena
  int64_t width;   // floats per token or head row
};

struct LlmxPart {  // one weight of a linear, or of an embedding
  int32_t weight, bias, column, pad;  // bias: a vector or -1; column: first output
};

struct LlmxState {  // one layer's pages
  int32_t group, type, kv_heads, head_dim, v_head_dim, pad;
  int64_t layer_offset;
};

struct LlmxGroup {
  int64_t block_bytes, num_blocks;
  int32_t max_blocks, pad;  // of one request
};

struct LlmxTape {
  const LlmxOp* ops;
  const LlmxValue* values;
  const LlmxPart* parts;
  int32_t n_ops, n_values, n_parts, logits;  // logits: the value of the head rows' logits
  int64_t arena_floats;
  int32_t max_tokens, max_requests, vocab, act_mult;  // act_mult: greatest mult of a linear
  int32_t act_width;                                  // greatest input width of a linear
  int32_t head_width;                                 // elements of a head row's result; 0: vocab (logits)
};

}  // extern "C"

namespace llmx {

constexpr int kHeadRows = 64;
constexpr int kMlpTiles = 4;   // tiles of rows that walk over gate and up together
constexpr int kMlpGroups = 8;  // groups of 32 columns whose products a thread holds at most
constexpr int kOpKinds = LLMX_COLLECTIVE + 1;

// Memory from mmap, at 2 MB borders, with transparent huge pages asked for. Zero-filled.
class Pages {
 public:
  explicit Pages(size_t bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* mapping_ = nullptr;
  size_t mapped_ = 0, size_ = 0;
  uint8_t* data_ = nullptr;
};

// Memory that lives as long as the engine, cut from large Pages.
class Arena {
 public:
  uint8_t* take(size_t bytes);
  size_t total() const { return total_; }

 private:
  std::vector<std::unique_ptr<Pages>> chunks_;
  size_t used_ = 0, total_ = 0;
};

// Which blocks of a fine row get a low plane: all, those that stand out among the row's or among those nearby, or none.
enum class LowPlane { all, outliers, nearby, none };

struct BlockView {  // rows of blocks of 32 values; floats from one row, and from one block of it, to the next
  const float* data;
  int64_t row, block;
};

// Rows of a product's input in the forms that its weights want: acts by ActType.
struct LinearInput {
  const void* acts[kActTypes];
  int64_t m, k;
};

struct LoraAdapter {
  Arena memory;
  std::vector<LoraPart> parts;  // by part of the tape
};

struct LoraGroup {  // rows [first, first + count) of lora_rows_ use this adapter
  int32_t adapter;
  int64_t first, count;
};

struct StoredTape {  // a tape that is not running
  std::vector<LlmxOp> ops;
  std::vector<LlmxValue> values;
  std::vector<LlmxPart> parts;
  std::vector<const Reads*> reads;
  std::unique_ptr<Pages> arena;
  LlmxTape shape{};
};

class Engine {
 public:
  Engine(Isa isa, int threads);
  ~Engine() { pool_.settle(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int add_weight(WeightType from, WeightType to, bool int8, int64_t rows, int64_t cols, const uint8_t* data, int64_t row_bytes);
  int add_vector(const float* data, int64_t n);
  const char* set_tape(const LlmxTape& tape);
  const char* set_draft_tape(const LlmxTape& tape);  // behind set_tape, before allocate; several: that of the first run, of the second, ...
  // Where hidden rows of `width` floats are kept: behind the layers in the blocks of a group. Width 0, as at first: nowhere.
  void set_hidden(int group, int64_t offset, int64_t width) { hidden_group_ = group, hidden_offset_ = offset, hidden_width_ = width; }
  const char* allocate(const LlmxGroup* groups, int n_groups, const LlmxState* states, int n_states);
  // Null, or what is wrong (a bug of the caller or a dead device). finish: sample too; otherwise `finish_step` follows.
  const char* step(const LlmxStepArgs& args, LlmxStepResult* result, bool finish);
  const char* finish_step(const LlmxStepArgs& args, LlmxStepResult* result, const float* logits);
  // A step that the pool runs while the caller does something else, and what came of the oldest one: null, or what is wrong. args and
  // result must live until then. Behind it others may be started, kJobs in all; any other call waits until they are done.
  const char* start(const LlmxStepArgs& args, LlmxStepResult* result);
  const char* wait();
  const char* draft(const LlmxDraftArgs& rows);
  const char* head_logits(const LlmxStepArgs& args, int begin, int end, float* out);
  const char* set_lora(int slot, const LlmxLora* parts, int n);  // n 0: the slot becomes empty
  // Types of the next step's token rows (segments of a pair of texts), all 0 unless set; n at most the limit of tokens.
  const char* set_token_types(const int32_t* types, int n);
  const float* value_rows(int value) const { return arena() + values_[value].offset; }

  Pool& pool() { return pool_; }
  Isa isa() const { return isa_; }
  size_t weight_bytes() const { return weights_memory_.total(); }
  SlotTable& slots() { return pool_.settle(), slots_; }
  uint8_t* pages(int group) const { return pages_[group]->data(); }
  const PackedWeight& weight(int id) const { return weights_[id]; }
  const int64_t* op_ns() const { return op_ns_; }  // time spent so far in the ops of each kind
  void linear(const LlmxPart* parts, int n, const LinearInput& input, float* y, int64_t ldy, const float* residual,
              const std::vector<LoraUse>* uses = nullptr, int first = 0);
  void set_communicator(Communicator* one) { communicator_ = one; }  // of one rank among several; it must outlive the engine
  // Rows of positions below n get int16 inputs to quantised weights where these are i16, later ones int8.
  void set_fine_positions(int n) { fine_positions_ = n; }
  void set_fine_rows(const uint8_t* rows, int mult) { fine_rows_ = rows, fine_mult_ = mult; }
  LinearInput input_of(const LlmxPart* parts, int n, const float* x, int64_t m, int64_t k, const NormParams* norm, LowPlane low,
                       bool keep = false);

 private:
  struct Sampling;
  struct Started {
    Engine* engine;
    const LlmxStepArgs* args;
    LlmxStepResult* result;
    std::string wrong;  // of this step: error_ may be that of a later one
    uint32_t job;
  };
  static void run_started(void* context);
  float* arena() const { return reinterpret_cast<float*>(arena_->data()); }
  float* value(int id) const { return id < 0 ? nullptr : arena() + values_[id].offset; }
  const float* vector(int id) const { return id < 0 ? nullptr : vectors_[id]; }
  void swap_tape(StoredTape& other);
  const char* draft_rows(const LlmxDraftArgs& rows);
  float* kept_row(const LlmxStepArgs& args, int request, int64_t position);
  void run_hidden(const LlmxOp& op, const LlmxStepArgs& args, int64_t rows);
  void run_keep(const LlmxOp& op, const LlmxStepArgs& args, int64_t rows, int64_t first_head);
  void run_guess(const LlmxOp& op, int64_t rows, int64_t first_head);
  const char* begin(const LlmxStepArgs& args);
  const char* kv_ops(const LlmxStepArgs& args);
  void run(const LlmxOp& op, const LlmxStepArgs& args, int64_t rows, int64_t first_head);
  void run_untimed(const LlmxOp& op, const LlmxStepArgs& args, int64_t rows, int64_t first_head);
  void run_rowwise(const LlmxOp& op, int64_t rows);
  void run_collective(const LlmxOp& op, int64_t rows);
  const char* run_all(const LlmxStepArgs& args, int on_head, int64_t rows, int64_t first_head);
  void run_attention(const LlmxOp& op, const LlmxStepArgs& args);
  void run_kv_write(const LlmxOp& op, const LlmxStepArgs& args);
  void run_qkv(const LlmxOp& op, int64_t rows);
  void run_linear(const LlmxOp& op, int64_t rows);
  void run_mlp(const LlmxOp& op, int64_t rows);
  void plan_reads();
  // Phase 0 or 1 of products of this op begins: those who wait may ask for what the next one reads.
  void reads_after(const LlmxOp& op, int phase) { pool_.ahead(reads_[2 * static_cast<size_t>(&op - ops_.data()) + static_cast<size_t>(phase)]); }
  void round_tile(ActType type, const float* x, int64_t ldx, int64_t first, int64_t rows, int64_t columns, uint8_t* out, int64_t ld);
  void round_outliers(const BlockView& x, int64_t rows, int64_t blocks, int64_t among, uint8_t* out, uint32_t fine);
  LowPlane low_plane(const LlmxOp& op, int n) const;
  uint32_t fine_mask(int64_t first, int64_t rows) const;
  bool any_fine(int64_t rows) const;
  void gemm(const LlmxPart& part, const LinearInput& input, int64_t tile, int64_t rows, float* y, int64_t ldy, const float* residual,
            int64_t begin, int64_t end);
  void pack_lora(const LlmxLora& from, LoraAdapter* adapter);
  const float* lengths(const LlmxLora& from, const LoraPart& part, const PackedWeight& weight, LoraAdapter* adapter);
  const float* column_lengths(const LlmxLora& from, const LoraPart& part, const PackedWeight& weight, LoraAdapter* adapter);
  void embed_lora(const LlmxOp& op, const LlmxStepArgs& args, int64_t rows, const int32_t* index, float* y);
  template <class F>
  void group_lora(int64_t rows, F adapter_of);
  void group_rows(const LlmxOp& op, const LlmxStepArgs& args, int64_t rows, int64_t first_head);
  bool lora_uses(const LlmxPart* parts, int first, int end, std::vector<LoraUse>* uses);
  void lora_shrink(const std::vector<LoraUse>& uses, const float* x, int64_t ldx);
  void lora_add(const std::vector<LoraUse>& uses, int index, const LlmxPart& part, int64_t row, int64_t rows, float* y, int64_t ldy, const float* residual,
                int64_t begin, int64_t end);
  const char* begin_lora(const LlmxStepArgs& args);
  KvGeometry geometry(const LlmxState& state) const;
  const char* sample_block(Sampling& sampling, const float* logits, int begin, int end);
  const char* score_block(Sampling& sampling, const float* logits, int begin, int end);

  const Isa isa_;
  Pool pool_;
  const LinearKernels& linear_;
  const RowKernels& rowwise_;
  const AttnKernels& attention_;
  const SampleKernels& sampler_;
  const LoraKernels& lora_;
  Arena weights_memory_;
  std::vector<PackedWeight> weights_;
  std::vector<const float*> vectors_;
  std::vector<LlmxOp> ops_;
  std::vector<LlmxValue> values_;
  std::vector<LlmxPart> parts_;
  std::vector<const Reads*> reads_;  // two for each op: what the phase of products after its first, and after its second, reads
  std::vector<LlmxState> states_;
  std::vector<LlmxGroup> groups_;
  std::vector<std::unique_ptr<Pages>> pages_;
  std::unique_ptr<Pages> arena_;
  std::unique_ptr<Pages> acts_[kActTypes], mid_acts_[kActTypes];  // by ActType: a product's input, and that of the second product of an mlp
  LlmxTape shape_{};
  Communicator* communicator_ = nullptr;
  const char* failed_ = nullptr;  // why a collective of this step could not be done
  std::vector<StoredTape> drafts_;
  const LlmxDraftArgs* drafting_ = nullptr;  // the run of a draft tape at hand
  int hidden_group_ = 0;
  int64_t hidden_offset_ = 0, hidden_width_ = 0;
  std::vector<float> draft_hidden_;  // rows that the last run kept, one per head row
  int64_t draft_width_ = 0;
  Started started_[Pool::kJobs];
  uint32_t n_started_ = 0, n_waited_ = 0;
  SlotTable slots_;
  std::vector<int32_t> ids_, positions_, token_types_, request_of_slot_, token_request_;
  int fine_positions_ = INT32_MAX;
  std::vector<uint8_t> token_fine_, head_fine_;  // per token row, per head row of the block at hand
  const uint8_t* fine_rows_ = nullptr;           // of the op that runs, one per fine_mult_ rows; null: all are fine
  int fine_mult_ = 1;
  std::vector<std::vector<uint8_t>> thread_scratch_;
  std::vector<std::vector<float>> tile_scratch_;  // per thread: a tile of rows
  std::vector<uint8_t> items_, partial_;
  std::vector<std::unique_ptr<LoraAdapter>> adapters_;  // by slot
  bool lora_step_ = false;                              // a row of this step uses an adapter
  std::vector<int32_t> token_lora_;                     // per token row: the slot of its adapter, or -1
  std::vector<LoraGroup> lora_groups_;                  // of the product that runs
  std::vector<int32_t> lora_rows_;
  int64_t lora_key_ = 0;  // which rows these are: as long as it stays, they do
  std::vector<LoraUse> lora_uses_;
  std::vector<float> lora_h_, lora_mid_;  // A x; rows between the two products of an mlp
  int64_t op_ns_[kOpKinds] = {};
  std::string error_;
};

}  // namespace llmx
