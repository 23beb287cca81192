// Limits of the machine, for `llmx bench kernels` and the comparison with other engines.
#include "roofline.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <exception>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#define LLMX_API extern "C" __attribute__((visibility("default")))

namespace llmx {

extern const PeakFn peak_loop_portable, peak_loop_avx2, peak_loop_avx512, peak_loop_neon;

PeakFn peak_loop(Isa isa) {
#if LLMX_X86
  if (isa == Isa::avx512) return peak_loop_avx512;
  if (isa == Isa::avx2) return peak_loop_avx2;
#elif LLMX_NEON
  if (isa == Isa::neon) return peak_loop_neon;
#endif
  (void)isa;
  return peak_loop_portable;
}

namespace {

// Processor time of the calling thread: a thread that another process pushes off its core is not slower for it, and waiting for
// memory counts.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// work(thread) gives the amount done; it runs on all threads at once, begun together. The sum of amounts per second.
template <class F>
double together(int threads, F work) {
  std::atomic<int> ready{0};
  std::vector<double> rates(static_cast<size_t>(threads));
  auto join_in = [&](int index) {
    ready.fetch_add(1);
    while (ready.load() < threads) std::this_thread::yield();
    const double begin = thread_seconds();
    const double amount = work(index);
    rates[static_cast<size_t>(index)] = amount / (thread_seconds() - begin);
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(join_in, i);
  join_in(0);
  for (auto& other : others) other.join();
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

constexpr int kSpans = 8;
constexpr double kSpanSeconds = 0.02;

}  // namespace

double peak_ops(Isa isa, PeakKind kind, int threads) {
  const PeakFn loop = peak_loop(isa);
  std::vector<float> sinks(static_cast<size_t>(threads) * 16);  // a cache line each
  int64_t rounds = 1 << 14;
  for (double took = 0; took < kSpanSeconds / 2; rounds *= 2) {  // until a span is long against what starting threads takes
    const double begin = thread_seconds();
    loop(kind, rounds, sinks.data());
    took = thread_seconds() - begin;
  }
  double best = 0;
  for (int span = 0; span < kSpans; ++span) {
    best = std::max(best, together(threads, [&](int index) { return static_cast<double>(loop(kind, rounds, &sinks[static_cast<size_t>(index) * 16])); }));
  }
  return best;
}

double read_rate(int threads, int64_t bytes) {
  const int64_t words = bytes / 8 / threads / 8 * 8;
  std::unique_ptr<uint64_t[]> memory(new uint64_t[static_cast<size_t>(words * threads)]);
  std::memset(memory.get(), 1, static_cast<size_t>(words * threads) * 8);  // written, so that every page is there
  std::vector<uint64_t> sums(static_cast<size_t>(threads) * 8);
  auto read = [&](int index) {
    const uint64_t* from = memory.get() + words * index;
    uint64_t sum[8] = {};
    for (int64_t i = 0; i < words; i += 8)
      for (int lane = 0; lane < 8; ++lane) sum[lane] += from[i + lane];
    for (uint64_t one : sum) sums[static_cast<size_t>(index) * 8] += one;
    return static_cast<double>(words * 8);
  };
  double best = 0;
  for (int pass = 0; pass < kSpans; ++pass) best = std::max(best, together(threads, read));
  return best;
}

}  // namespace llmx

// kind: PeakKind; 0 when the CPU cannot run the level, or memory is short.
LLMX_API double llmx_peak_ops(int isa, int kind, int threads) {
  if (isa < 0 || isa > static_cast<int>(llmx::isa_best()) || kind < 0 || kind > 2 || threads < 1) return 0;
  return llmx::peak_ops(static_cast<llmx::Isa>(isa), static_cast<llmx::PeakKind>(kind), threads);
}
LLMX_API double llmx_read_rate(int threads, int64_t bytes) {
  if (threads < 1 || bytes < 64 * threads) return 0;
  try {
    return llmx::read_rate(threads, bytes);
  } catch (const std::exception&) {
    return 0;
  }
}
