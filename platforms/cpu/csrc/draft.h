// Drafts on the device: further tapes, whose rows run at the end of a step. They share weights, pages, block tables and scratch with the first.
#pragma once
#include <cstdint>

extern "C" {

struct LlmxDraftArgs {  // llmx.executor.draft_loop.DraftRows
  int32_t n, t, r, run;    // run: which of the draft tapes
  int32_t guesses, pad;    // ids that a head row gives
  const int32_t* slot;     // [N]
  const int32_t* q;        // [N]
  const int32_t* start;    // [N]
  const int32_t* tokens;   // [T]
  const int32_t* head;     // [R]
  const int32_t* behind;   // [T] head row of the run before whose hidden row this one reads; -1: that of the model at its position
  int32_t* next;           // [R, guesses] out: the most likely next tokens, the lowest id of equal ones
};

}  // extern "C"
