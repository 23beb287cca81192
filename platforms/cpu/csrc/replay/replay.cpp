// Replays calls of the C API that were recorded on another machine (tests/cpu/recording.py) and compares what they write with what was
// recorded: the kernels' tests for machines that are emulated, where Python with its libraries does not run.
//
//   llmx_replay FILE LEVEL     LEVEL: a number of isa.h; -1: the best of this machine
//
// A file is a row of records of 64-bit words:
//   1 buffer   size, bytes, count of pointers, (offset, buffer) each, offset of a level or -1
//   2 call     length of the name, the name, count of arguments, (kind, value) each: 0 number, 1 float, 2 buffer, 3 result of a call,
//              4 the level; 1 when the result is no handle and below 0 means failure
//   3 compare  buffer, offset, 0 for floats or 1 for bytes, size, tolerance (float bits), bytes
//   4 print    buffer, count of int32 from its start
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

extern "C" {
using P = void*;
using I = int;
using L = int64_t;
const char* llmx_error();
I llmx_isa_best();
P llmx_engine_new(I, I);
void llmx_engine_free(P);
I llmx_engine_weight(P, I, I, I, L, L, P, L);
void llmx_engine_fine_positions(P, I);
I llmx_engine_vector(P, P, L);
I llmx_engine_tape(P, P);
I llmx_engine_kv(P, P, I, P, I);
I llmx_engine_step(P, P, P, I);
I llmx_test_linear(P, P, I, P, L, L, P, L, P, I, P);
I llmx_test_unpack_row(P, I, L, P);
I llmx_test_norm(I, I, float, I, P, P, P, P, I, P, L, L, L);
I llmx_test_act(I, I, I, P, P, L, L);
I llmx_test_unary(I, I, float, P, P, L);
I llmx_test_softmax(I, P, P, L, L);
I llmx_test_rope(I, P, I, I, P, P, P, L, I, I);
void llmx_test_kv_write(P, L, L);
L llmx_test_attention(P, P);
P llmx_test_slots_open(I, I, P);
void llmx_test_slots_close(P);
const char* llmx_test_slots_apply(P, P);
void llmx_test_slots_append(P, I, int32_t);
void llmx_test_sample(I, P, P, I, I);
void llmx_test_score(I, P, I, I);
}

namespace {

using Word = uint64_t;

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(2);
}

template <class T>
T argument(Word word) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(word);
  } else if constexpr (std::is_floating_point_v<T>) {
    float value;
    std::memcpy(&value, &word, 4);
    return value;
  } else {
    return static_cast<T>(word);
  }
}

template <class R, class... A, size_t... Index>
Word invoke(R (*function)(A...), const std::vector<Word>& words, std::index_sequence<Index...>) {
  if (words.size() != sizeof...(A)) stop("a call has the wrong number of arguments");
  if constexpr (std::is_void_v<R>) {
    function(argument<A>(words[Index])...);
    return 0;
  } else if constexpr (std::is_pointer_v<R>) {
    return reinterpret_cast<Word>(function(argument<A>(words[Index])...));
  } else {
    return static_cast<Word>(static_cast<int64_t>(function(argument<A>(words[Index])...)));
  }
}

template <auto Function>
struct Caller;
template <class R, class... A, R (*Function)(A...)>
struct Caller<Function> {
  static Word call(const std::vector<Word>& words) { return invoke(Function, words, std::index_sequence_for<A...>{}); }
};

using Call = Word (*)(const std::vector<Word>&);
#define LLMX_ENTRY(name) {#name, Caller<name>::call}
const std::map<std::string, Call>& calls() {
  static const std::map<std::string, Call> table = {
      LLMX_ENTRY(llmx_engine_new),      LLMX_ENTRY(llmx_engine_free),        LLMX_ENTRY(llmx_engine_weight), LLMX_ENTRY(llmx_engine_fine_positions),
      LLMX_ENTRY(llmx_engine_vector),   LLMX_ENTRY(llmx_engine_tape),        LLMX_ENTRY(llmx_engine_kv),     LLMX_ENTRY(llmx_engine_step),
      LLMX_ENTRY(llmx_test_linear),     LLMX_ENTRY(llmx_test_unpack_row),    LLMX_ENTRY(llmx_test_norm),     LLMX_ENTRY(llmx_test_act),
      LLMX_ENTRY(llmx_test_unary),      LLMX_ENTRY(llmx_test_softmax),       LLMX_ENTRY(llmx_test_rope),     LLMX_ENTRY(llmx_test_kv_write),
      LLMX_ENTRY(llmx_test_attention),  LLMX_ENTRY(llmx_test_slots_open),    LLMX_ENTRY(llmx_test_slots_close), LLMX_ENTRY(llmx_test_slots_apply),
      LLMX_ENTRY(llmx_test_slots_append), LLMX_ENTRY(llmx_test_sample),      LLMX_ENTRY(llmx_test_score)};
  return table;
}

class Replay {
 public:
  Replay(std::FILE* file, int level) : file_(file), level_(level) {}

  // Returns the number of comparisons that failed.
  int run() {
    Word kind;
    while (std::fread(&kind, sizeof kind, 1, file_) == 1) {
      if (kind == 1) {
        buffer();
      } else if (kind == 2) {
        call();
      } else if (kind == 3) {
        compare();
      } else if (kind == 4) {
        print();
      } else {
        stop("unknown record");
      }
    }
    std::printf("level %d calls %d compared %d failed %d worst %.3g\n", level_, calls_, compared_, failed_, worst_);
    return failed_;
  }

 private:
  Word word() {
    Word value;
    read(&value, sizeof value);
    return value;
  }
  void read(void* to, size_t size) {
    if (size && std::fread(to, 1, size, file_) != size) stop("the file ends early");
  }
  uint8_t* at(Word buffer) { return buffers_.at(buffer); }

  void buffer() {
    const Word size = word();
    auto* data = static_cast<uint8_t*>(std::aligned_alloc(64, (size + 127) / 64 * 64));  // kept to the end: pointers and engines refer to it
    if (!data) stop("out of memory");
    read(data, size);
    buffers_.push_back(data);
    for (Word left = word(); left > 0; --left) {
      const Word offset = word(), target = reinterpret_cast<Word>(at(word()));
      std::memcpy(data + offset, &target, 8);
    }
    const Word level = word();
    if (level != ~Word{0}) std::memcpy(data + level, &level_, 4);
  }

  void call() {
    std::string name(word(), ' ');
    read(&name[0], name.size());
    std::vector<Word> words(word());
    for (Word& one : words) {
      const Word kind = word();
      one = word();
      if (kind == 2) one = reinterpret_cast<Word>(at(one));
      if (kind == 3) one = results_.at(one);
      if (kind == 4) one = static_cast<Word>(level_);
    }
    const bool checked = word() != 0;
    const auto found = calls().find(name);
    if (found == calls().end()) stop("unknown function " + name);
    name_ = name;
    ++calls_;
    const Word result = found->second(words);
    if (checked && static_cast<int64_t>(result) < 0) stop(name + ": " + llmx_error());
    if (!checked && name == "llmx_engine_new" && !result) stop(llmx_error());
    results_.push_back(result);
  }

  void compare() {
    const uint8_t* got = at(word());
    got += word();
    const bool bytes = word() != 0;
    const Word size = word();
    const float tolerance = argument<float>(word());
    std::vector<uint8_t> want(size);
    read(want.data(), size);
    ++compared_;
    if (bytes ? std::memcmp(got, want.data(), size) != 0 : !close(got, want.data(), size / 4, tolerance)) {
      ++failed_;
      if (failed_ <= 20) std::printf("differs: comparison %d, call %d, %s\n", compared_, calls_, name_.c_str());
    }
  }

  // Differences are measured against the greatest magnitude that was recorded.
  bool close(const uint8_t* got, const uint8_t* want, size_t n, float tolerance) {
    float top = 0, difference = 0;
    for (size_t i = 0; i < n; ++i) {
      float a, b;
      std::memcpy(&a, got + 4 * i, 4);
      std::memcpy(&b, want + 4 * i, 4);
      if (!std::isfinite(a) || !std::isfinite(b)) {
        if (!(std::isnan(a) && std::isnan(b)) && !(a == b)) return false;
        continue;
      }
      top = std::fmax(top, std::fabs(b));
      difference = std::fmax(difference, std::fabs(a - b));
    }
    if (top > 0) worst_ = std::fmax(worst_, difference / top);
    return difference <= tolerance * top;
  }

  void print() {
    const uint8_t* data = at(word());
    for (Word left = word(); left > 0; --left, data += 4) {
      int32_t value;
      std::memcpy(&value, data, 4);
      std::printf("%d ", value);
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  std::FILE* file_;
  const int level_;
  std::vector<uint8_t*> buffers_;
  std::vector<Word> results_;
  std::string name_;
  int calls_ = 0, compared_ = 0, failed_ = 0;
  float worst_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) stop("usage: llmx_replay FILE LEVEL");
  std::FILE* file = std::fopen(argv[1], "rb");
  if (!file) stop(std::string(argv[1]) + " cannot be read");
  const int wanted = std::atoi(argv[2]);
  if (wanted > llmx_isa_best()) stop("this machine does not run level " + std::to_string(wanted));
  return Replay(file, wanted < 0 ? llmx_isa_best() : wanted).run() ? 1 : 0;
}
