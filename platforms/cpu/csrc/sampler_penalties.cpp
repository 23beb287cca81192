#include "sampler_penalties.h"

namespace llmx {

int64_t generated_tokens(const Slot& slot) { return static_cast<int64_t>(slot.history.size()) - slot.prompt_len; }

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
