// What DDP and ZeRO-1 and 2 have in common: a model that runs as if there were no library, cut
// where autograd has stored the gradients at which the library acts.
//
// A derived builder is told of every gradient in autograd's order. Where it issues something it calls cut(), which
// writes the row of what backward has run so far; what is not cut stays one row a layer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/graph/host_log.h"
#include "sim/graph/step_builder.h"
#include "sim/graph/torch_words.h"

namespace foreshard {

class GradientHooks : public StepBuilder {
 public:
  enum class Log : std::uint8_t { kNone, kKept };

  // A parameter of the model in the order of Module.parameters(); tied weights once.
  struct Parameter {
    std::int32_t layer = 0;
    std::int16_t index = 0;  // in its layer
    bool trained = true;
    bool used = false;  // a gradient arises
    DType dtype = DType::kFp32;
    std::int64_t numel = 0;
    std::int64_t bytes() const { return numel * size_of(dtype); }
  };

 protected:
  struct Settings {
    DType stored = DType::kFp32;  // of the parameters that the model holds
    Log log = Log::kNone;
  };
  GradientHooks(
      const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled, Settings settings);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const Parameter& parameter(std::int32_t p) const { return parameters_[at(p)]; }
  bool waits_in_vain(std::int32_t layer, const ParameterSpec& parameter) const;
  std::string name_of(std::int32_t p) const;
  // Trained and used ones as autograd stores their gradients.
  const std::vector<std::int32_t>& ready_order() const { return ready_order_; }

  // --- one micro-batch, of all layers or a stage's ---
  void set_layers(std::int32_t begin, std::int32_t end) {
    begin_ = begin;
    end_ = end;
  }
  std::int32_t begin_layer() const { return begin_; }
  std::int32_t end_layer() const { return end_; }
  void run_forward();
  void run_backward();
  // The gradient is stored. `cut` before any row.
  virtual void gradient_ready(std::int32_t parameter) = 0;
  // Before the layer's forward; after its backward.
  virtual void forward_begins(std::int32_t /*layer*/) {}
  virtual void reference_begins() {}  // Plan::reference
  virtual void reference_ended() {}
  virtual void forward_ended() {}  // with the loss
  virtual void loss_begins() {}
  virtual void recompute_begins(std::int32_t /*layer*/) {}
  virtual void backward_ended(std::int32_t /*layer*/) {}
  void cut();
  void hold_reference();  // as the trained one is held
  // A phase of a layer that nothing cuts: one row, or one between each two of its collectives.
  void run_layer(EventKind kind, std::int32_t layer);
  // The buffer of the gradient that pass `pass` stored; kNoBuffer where it was added to another.
  std::int32_t gradient_buffer(std::int32_t parameter, std::int32_t pass) const;

  // A row on `stream` that costs what equal calls cost: kernels that move `moved` bytes in
  // `launches` launches, or a collective of `bytes`.
  EventId add_copy(EventKind kind, Stream stream, std::int64_t moved, std::int64_t launches);
  EventId add_collective(EventKind kind, Stream stream, std::int64_t bytes, std::uint8_t communicator);
  // Which what follows waits for.
  EventId all_reduce(std::uint8_t communicator, std::int64_t bytes);
  // Of a pipeline: a tied table's gradients, of so many bytes an element, of the first and the last stage.
  void find_embedding_ranks();
  void sum_table_gradients(std::int64_t size);
  UnitWork unit_work(EventKind kind, const UnitShape& shape, std::int32_t variant) const override;

  // --- the log ---
  bool logging() const { return logging_; }
  void log(LibraryEvent event);
  void log_collective(std::string_view kind, std::int64_t bytes, std::string_view dtype, std::string note);
  std::vector<LibraryEvent> take_log() { return std::move(events_); }

 private:
  void list_parameters();
  bool repeats_parameters(std::int32_t layer) const;
  void run_reference();
  void run_backward(std::int32_t layer);
  void run_segments(EventKind kind, std::int32_t layer, std::size_t first, std::size_t count);
  void compute_loss(std::int32_t layer);
  void log_backward_begin(std::int32_t layer, std::int16_t module);
  void log_module(std::string_view kind, std::int32_t layer, std::int16_t module);
  bool is_block(std::int32_t layer) const { return block_of(layer) >= 0; }
  EventId add_known(
      EventKind kind, Stream stream, std::int64_t bytes, std::int64_t launches, std::uint8_t communicator);

  std::vector<Parameter> parameters_;
  std::vector<std::int32_t> first_parameter_;  // of each layer; a repeated call's is its module's
  Indices number_in_layer_;                    // of its parameters, from first_place_ on
  std::vector<std::int32_t> first_place_;
  std::vector<std::int32_t> ready_order_;
  std::vector<EventId> flights_;  // of the calls of the phase that runs
  WorkIndex known_;
  std::int32_t begin_ = 0, end_ = 0;
  std::uint8_t embedding_ranks_ = kNoCommunicator;
  std::int32_t layer_ = -1;  // whose backward runs
  std::size_t next_segment_ = 0, segments_run_ = 0;
  DType stored_;
  std::pair<std::int32_t, std::int16_t> left_{-1, -1};  // whose backward has ended: layer, module
  bool logging_ = false;
  std::vector<LibraryEvent> events_;
};

}
