// One step: changes of slots and pages, the forward over all token rows, then head rows in blocks of 64 with sampling.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "tape.h"

namespace llmx {
namespace {

constexpr int kZero = 0, kCopy = 2;                            // llmx.batch.KvOp
constexpr int kFewRows = 4;                                    // a step that reads weights more than it computes
constexpr uint8_t kOk = 0, kNan = 1;                           // llmx.batch.Status

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

// What the samples and score spans of one step have come to so far. A sample's rows are drawn in order, each only when all
// before it gave the token that the next row was fed.
struct Engine::Sampling {
  const LlmxStepArgs& args;
  LlmxStepResult* result;
  std::vector<uint8_t> alive;      // [S] the next row counts
  std::vector<int> mask_row;       // [S] first row among all sample rows
  std::vector<int> score_row;      // [C] first row among all score rows
  std::vector<SampleRow> rows;
  std::vector<int> row_sample, row_index;
  std::vector<ScoreRow> scores;

  Sampling(const LlmxStepArgs& step, LlmxStepResult* out) : args(step), result(out), alive(static_cast<size_t>(step.s), 1) {
    int at = 0;
    for (int s = 0; s < step.s; ++s) mask_row.push_back(at), at += step.samples[3 * s + 2];
    at = 0;
    for (int c = 0; c < step.c; ++c) score_row.push_back(at), at += step.score[3 * c + 2];
  }
};

const char* Engine::kv_ops(const LlmxStepArgs& args) {
  for (int i = 0; i < args.n_kv_ops; ++i) {
    const int32_t op = args.kv_ops[4 * i], group = args.kv_ops[4 * i + 1], src = args.kv_ops[4 * i + 2], dst = args.kv_ops[4 * i + 3];
    if (group < 0 || group >= static_cast<int>(groups_.size())) return "a KV operation names a group that does not exist";
    const int64_t blocks = groups_[group].num_blocks;
    if (dst < 0 || dst >= blocks || (op == kCopy && (src < 0 || src >= blocks))) return "a KV operation names a block that does not exist";
    KvGeometry whole{};
    whole.block_bytes = groups_[group].block_bytes;
    if (op == kZero) {
      kv_zero_block(pages(group), whole, dst);
    } else if (op == kCopy) {
      kv_copy_block(pages(group), whole, src, dst);
    } else {
      error_ = "KV operation " + std::to_string(op) + " is not offered by the native executor (it has zero and copy)";
      return error_.c_str();
    }
  }
  return nullptr;
}

const char* Engine::begin(const LlmxStepArgs& args) {
  if (args.t > shape_.max_tokens || args.n > shape_.max_requests) {
    error_ = "a step of " + std::to_string(args.t) + " tokens and " + std::to_string(args.n) + " requests exceeds the limits " +
             std::to_string(shape_.max_tokens) + " and " + std::to_string(shape_.max_requests);
    return error_.c_str();
  }
  const char* wrong = slots_.apply(args);
  if (wrong && *wrong) return wrong;
  if ((wrong = kv_ops(args))) return wrong;
  int t = 0;
  for (int i = 0; i < args.n; ++i) {
    const int last = slots_.at(args.slot[i]).last_token;
    for (int j = 0; j < args.q[i]; ++j, ++t) {
      if (t >= args.t) return "the row counts q add up to more than the tokens";
      const int32_t token = args.tokens[t] < 0 ? last : args.tokens[t];
      if (token < 0 || token >= shape_.vocab) {
        error_ = "token row " + std::to_string(t) + " has id " + std::to_string(token) + ", the vocabulary has " + std::to_string(shape_.vocab);
        return error_.c_str();
      }
      ids_[static_cast<size_t>(t)] = token;
      positions_[static_cast<size_t>(t)] = args.start[i] + j;
      token_fine_[static_cast<size_t>(t)] = args.start[i] + j < fine_positions_;
    }
  }
  for (int r = 0; r < args.r; ++r) {
    if (args.head[r] < 0 || args.head[r] >= args.t) return "a head row names a token row that does not exist";
  }
  return t == args.t ? begin_lora(args) : "the row counts q do not add up to the tokens";
}

const char* Engine::step(const LlmxStepArgs& args, LlmxStepResult* result, bool finish) {
  FloatMode mode;
  const int64_t start = now_us();
  Pool::Turn turn(pool_);
  pool_.wake(args.t <= kFewRows);
  if (const char* wrong = begin(args)) return wrong;
  if (args.t) {
    if (const char* wrong = run_all(args, 0, args.t, 0)) return wrong;
  }
  result->t_us[0] = now_us() - start;
  result->t_us[1] = result->t_us[2] = 0;
  if (args.n) std::memset(result->status, kOk, static_cast<size_t>(args.n));
  return finish ? finish_step(args, result, nullptr) : nullptr;
}

void Engine::run_started(void* context) {
  auto& one = *static_cast<Started*>(context);
  try {
    const char* wrong = one.engine->step(*one.args, one.result, true);
    one.wrong = wrong ? wrong : "";
  } catch (const std::exception& error) {
    one.wrong = error.what();
  }
}

const char* Engine::start(const LlmxStepArgs& args, LlmxStepResult* result) {
  if (n_started_ - n_waited_ == Pool::kJobs) return "as many steps as can be were started and not waited for";
  Started& one = started_[n_started_ % Pool::kJobs];
  one = {this, &args, result, "", 0};
  one.job = pool_.post(run_started, &one);
  ++n_started_;
  return nullptr;
}

const char* Engine::wait() {
  if (n_started_ == n_waited_) return "no step was started that is not waited for";
  const Started& one = started_[n_waited_++ % Pool::kJobs];
  pool_.help(one.job);
  return one.wrong.empty() ? nullptr : one.wrong.c_str();
}

const char* Engine::head_logits(const LlmxStepArgs& args, int begin, int end, float* out) {
  FloatMode mode;
  Pool::Turn turn(pool_);
  for (int b = begin; b < end; b += kHeadRows) {
    const int m = std::min(kHeadRows, end - b);
    if (const char* wrong = run_all(args, 1, m, b)) return wrong;
    const int64_t width = shape_.head_width ? shape_.head_width : shape_.vocab;
    std::memcpy(out + (b - begin) * width, value(shape_.logits), static_cast<size_t>(m * width) * 4);
  }
  return nullptr;
}

const char* Engine::set_token_types(const int32_t* types, int n) {
  if (n > static_cast<int>(token_types_.size())) return "more token types than a step has token rows";
  std::copy(types, types + n, token_types_.begin());
  return nullptr;
}

// logits: null, or rows [R, V] that the caller has changed since head_logits.
const char* Engine::finish_step(const LlmxStepArgs& args, LlmxStepResult* result, const float* logits) {
  FloatMode mode;
  const int64_t start = now_us();
  Pool::Turn turn(pool_);
  for (int i = 0; i < args.n; ++i) request_of_slot_[static_cast<size_t>(args.slot[i])] = i;
  const size_t bytes = static_cast<size_t>(sampler_.scratch_bytes(shape_.vocab));
  for (auto& scratch : thread_scratch_) {
    if (scratch.size() < bytes) scratch.resize(bytes);
  }
  std::fill_n(result->count, args.s, 0);
  std::fill_n(result->tokens, static_cast<int64_t>(args.s) * (1 + result->kmax), -1);
  Sampling sampling(args, result);
  const char* wrong = nullptr;
  int64_t head_us = 0;
  for (int b = 0; b < args.r && !wrong; b += kHeadRows) {
    const int end = std::min(args.r, b + kHeadRows);
    const int64_t head_start = now_us();
    if (!logits && (wrong = run_all(args, 1, end - b, b))) break;
    head_us += now_us() - head_start;
    const float* rows = logits ? logits + static_cast<int64_t>(b) * shape_.vocab : value(shape_.logits);
    wrong = score_block(sampling, rows, b, end);
    if (!wrong) wrong = sample_block(sampling, rows, b, end);
  }
  for (int i = 0; i < args.n; ++i) request_of_slot_[static_cast<size_t>(args.slot[i])] = -1;
  result->t_us[0] += head_us;
  result->t_us[1] += now_us() - start - head_us;
  return wrong;
}

const char* Engine::sample_block(Sampling& sampling, const float* logits, int begin, int end) {
  const LlmxStepArgs& args = sampling.args;
  LlmxStepResult* out = sampling.result;
  const int64_t columns = 1 + out->kmax, words = (shape_.vocab + 31) / 32;
  // Wave j draws row j of every sample; only verified drafts have more than one.
  int most = 0;
  for (int s = 0; s < args.s; ++s) most = std::max(most, args.samples[3 * s + 2]);
  for (int j = 0; j < most; ++j) {
    sampling.rows.clear();
    sampling.row_sample.clear();
    for (int s = 0; s < args.s; ++s) {
      const int32_t slot = args.samples[3 * s], first = args.samples[3 * s + 1], rows = args.samples[3 * s + 2];
      const int row = first + j;
      if (j >= rows || row < begin || row >= end || !sampling.alive[static_cast<size_t>(s)]) continue;
      if (slot < 0 || slot >= slots_.size() || !slots_.at(slot).used) return "a sample names a slot that no request holds";
      const int mask_row = sampling.mask_row[static_cast<size_t>(s)] + j;
      if (args.mask_drop && args.mask_drop[mask_row]) {
        sampling.alive[static_cast<size_t>(s)] = 0;
        continue;
      }
      SampleRow r{};
      r.logits = logits + static_cast<int64_t>(row - begin) * shape_.vocab;
      r.slot = &slots_.at(slot);
      r.position = static_cast<int64_t>(r.slot->history.size());
      r.mask = args.mask && !(args.mask_open && args.mask_open[mask_row]) ? args.mask + mask_row * words : nullptr;
      r.top = args.want_top ? args.want_top[s] : -1;
      r.n_ids = args.want_ids_offset ? args.want_ids_offset[s + 1] - args.want_ids_offset[s] : 0;
      r.ids = args.want_ids_offset ? args.want_ids + args.want_ids_offset[s] : nullptr;
      r.lp_width = out->lp_width;
      const int64_t cell = s * columns + j;
      if (r.top >= 0 && out->lp_ids) {
        r.lp_ids = out->lp_ids + cell * out->lp_width;
        r.lp = out->lp + cell * out->lp_width;
        r.rank = out->rank + cell;
      } else {
        r.top = -1;
        r.n_ids = 0;
      }
      sampling.rows.push_back(r);
      sampling.row_sample.push_back(s);
    }
    if (sampling.rows.empty()) continue;
    pool_.over(static_cast<int64_t>(sampling.rows.size()), 1, [&](int64_t from, int64_t to, int worker) {
      sampler_.sample(sampling.rows.data(), from, to, shape_.vocab, thread_scratch_[static_cast<size_t>(worker)].data());
    });
    for (size_t i = 0; i < sampling.rows.size(); ++i) {
      const SampleRow& r = sampling.rows[i];
      const int s = sampling.row_sample[i];
      const int32_t slot = args.samples[3 * s], first = args.samples[3 * s + 1], rows = args.samples[3 * s + 2];
      if (r.status != kOk) {  // behind a draft the next step meets it again, after the tokens before it went out
        const int request = request_of_slot_[static_cast<size_t>(slot)];
        if (request >= 0 && j == 0) out->status[request] = r.status;
        sampling.alive[static_cast<size_t>(s)] = 0;
        continue;
      }
      out->tokens[s * columns + j] = r.token;
      out->count[s] = j + 1;
      slots_.append(slot, r.token);
      const bool more = j + 1 < rows && ids_[static_cast<size_t>(args.head[first + j + 1])] == r.token;
      sampling.alive[static_cast<size_t>(s)] = more;
    }
  }
  return nullptr;
}

const char* Engine::score_block(Sampling& sampling, const float* logits, int begin, int end) {
  const LlmxStepArgs& args = sampling.args;
  LlmxStepResult* out = sampling.result;
  sampling.scores.clear();
  sampling.row_sample.clear();
  for (int c = 0; c < args.c; ++c) {
    const int32_t slot = args.score[3 * c], first = args.score[3 * c + 1], rows = args.score[3 * c + 2];
    if (slot < 0 || slot >= slots_.size() || !slots_.at(slot).used) return "a score span names a slot that no request holds";
    for (int j = std::max(0, begin - first); j < rows && first + j < end; ++j) {
      const size_t next = static_cast<size_t>(positions_[static_cast<size_t>(args.head[first + j])]) + 1;
      if (next >= slots_.at(slot).history.size()) return "a score span runs past the tokens of its request";
      const int64_t row = sampling.score_row[static_cast<size_t>(c)] + j;
      ScoreRow r{};
      r.logits = logits + static_cast<int64_t>(first + j - begin) * shape_.vocab;
      r.next = slots_.at(slot).history[next];
      r.top = args.score_top[c];
      r.width = out->score_width;
      r.ids = out->score_ids + row * out->score_width;
      r.lp = out->score_lp + row * out->score_width;
      r.rank = out->score_rank + row;
      sampling.scores.push_back(r);
      sampling.row_sample.push_back(slot);
    }
  }
  pool_.over(static_cast<int64_t>(sampling.scores.size()), 1, [&](int64_t from, int64_t to, int worker) {
    sampler_.score(sampling.scores.data(), from, to, shape_.vocab, thread_scratch_[static_cast<size_t>(worker)].data());
  });
  for (size_t i = 0; i < sampling.scores.size(); ++i) {
    const int request = request_of_slot_[static_cast<size_t>(sampling.row_sample[i])];
    if (sampling.scores[i].status != kOk && request >= 0) out->status[request] = kNan;
  }
  return nullptr;
}

}  // namespace llmx
