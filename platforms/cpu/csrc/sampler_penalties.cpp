#include "sampler_penalties.h"

#include <algorithm>
#include <limits>

namespace llmx {

int64_t generated_tokens(const Slot& slot) { return static_cast<int64_t>(slot.history.size()) - slot.prompt_len; }

void ban_bad_words(const Slot& slot, int vocab, float* z) {
  const int32_t* end = slot.row.bad_words + slot.row.n_bad;
  for (const int32_t* word = slot.row.bad_words; word < end; word += 1 + word[0]) {
    const int64_t before = word[0] - 1;
    const int32_t last = word[1 + before];
    if (before > generated_tokens(slot) || last < 0 || last >= vocab) continue;
    if (std::equal(word + 1, word + 1 + before, slot.history.end() - before)) z[last] = -std::numeric_limits<float>::infinity();
  }
}

void penalize(const Slot& slot, int vocab, float* z) {
  const float repetition = slot.row.repetition, frequency = slot.row.frequency, presence = slot.row.presence;
  for (const auto& [id, times] : slot.counts) {
    if (id < 0 || id >= vocab) continue;
    float value = z[id];
    if (repetition != 1.0f) value = value > 0.0f ? value / repetition : value * repetition;
    if (times > 0 && frequency != 0.0f) value -= frequency * static_cast<float>(times);
    if (times > 0 && presence != 0.0f) value -= presence;
    z[id] = value;
  }
}

}  // namespace llmx
