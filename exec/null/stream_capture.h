// Which streams are being captured into a CUDA graph, and what CUDA forbids meanwhile (cudaStreamBeginCapture's
// documentation). A forbidden call gets CUDA's own error, is noted with its place, and makes the capture invalid.
#pragma once

#include <string_view>

#include "exec/null/abi.h"

namespace foreshard::null {

// `mode`: cudaStreamCaptureMode, 0 global, 1 of this thread, 2 relaxed.
Status begin_capture(StreamHandle stream, int mode);
Status end_capture(StreamHandle stream, void** graph);
bool is_captured(StreamHandle stream);
void exchange_capture_mode(int* mode);  // of this thread

// Work, events and waits carry a capture from stream to stream.
void capture_work(StreamHandle stream);
void capture_record(EventHandle event, StreamHandle stream);
Status capture_wait(StreamHandle stream, EventHandle event);

// Calls that wait, allocate or look at how far the GPU is.
Status refuse_unsafe(std::string_view call);
Status refuse_on_captured(std::string_view call, StreamHandle stream);
Status refuse_on_captured_event(std::string_view call, EventHandle event);

}
