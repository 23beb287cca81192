// Drafts on the device: a second tape, whose rows run at the end of a step. It shares weights, pages, block tables and scratch with the first.
#pragma once
#include <cstdint>

extern "C" {

struct LlmxDraftArgs {  // llmx.executor.draft_loop.DraftRows
  int32_t n, t, r, pad;
  const int32_t* slot;    // [N]
  const int32_t* q;       // [N]
  const int32_t* start;   // [N]
  const int32_t* tokens;  // [T]
  const int32_t* head;    // [R]
  int32_t* next;          // [R] out: the most likely next token, the lowest id of equal ones
};

}  // extern "C"
