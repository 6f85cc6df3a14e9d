#include "exec/run/control.h"

#include <future>
#include <numeric>
#include <utility>

namespace foreshard {
namespace {

std::vector<int> everyone(const World& world) {
  std::vector<int> ranks(at(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}

struct Control::Exchange {
  std::vector<double> values;  // of all ranks: losses, what is not finite, the wish to stop
  std::promise<void> done;
};

Control::Control(World& world, std::size_t losses)
    : losses_(losses),
      communicator_(world.connect("control", everyone(world))),
      thread_(std::make_unique<StreamThread>([] {})) {}

Control::~Control() {
  communicator_.abort();  // nobody reads what is still on its way
  thread_.reset();
}

void Control::post(const ControlMessage& message) {
  auto exchange = std::make_shared<Exchange>();
  const std::size_t width = losses_ + 2;
  exchange->values.resize(width * at(communicator_.size()));
  double* own = exchange->values.data() + width * at(communicator_.index());
  for (std::size_t i = 0; i < losses_; ++i) own[i] = message.losses[i];
  own[losses_] = as_double(message.not_finite);
  own[losses_ + 1] = message.stop ? 1 : 0;
  pending_.push_back(exchange);
  thread_->issue([this, exchange, width] {
    try {
      communicator_.all_gather(exchange->values.data(), width * sizeof(double));
      exchange->done.set_value();
    } catch (...) {
      exchange->done.set_exception(std::current_exception());
    }
  });
}

std::vector<ControlMessage> Control::take() {
  const std::shared_ptr<Exchange> exchange = std::move(pending_.front());
  pending_.erase(pending_.begin());
  exchange->done.get_future().get();
  const std::size_t width = losses_ + 2;
  std::vector<ControlMessage> messages;
  for (std::size_t begin = 0; begin < exchange->values.size(); begin += width) {
    const double* values = exchange->values.data() + begin;
    messages.push_back({std::vector<double>(values, values + losses_), static_cast<EventId>(values[losses_]),
        values[losses_ + 1] != 0});
  }
  return messages;
}

}
