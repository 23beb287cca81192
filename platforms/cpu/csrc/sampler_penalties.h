// The part of sampling that walks a slot's containers. Compiled once, at the baseline: std:: templates must not be compiled with
// wide instructions (isa.h).
#pragma once
#include <cstdint>

#include "slots.h"

namespace llmx {

int64_t generated_tokens(const Slot& slot);

// -inf for each token that would complete one of the row's bad words, of which the generated text ends with all the rest.
void ban_bad_words(const Slot& slot, int vocab, float* z);

// Steps 3 to 5 of llmx/sample/reference.py, in place; ids outside the vocabulary are ignored.
void penalize(const Slot& slot, int vocab, float* z);

}  // namespace llmx
