#include "sim/base/fields.h"

#include <gtest/gtest.h>

#include <array>

#include "sim/base/error.h"

namespace foreshard {

enum class Colour : std::uint8_t { kRed, kBlue };
constexpr std::array<std::string_view, 2> kColours = {"red", "blue"};

struct Wheel {
  Colour colour = Colour::kRed;
  std::int64_t spokes = 0;
  double width = 0;  // 0: not known
};
void fields(auto& io, Wheel& wheel) {
  io("colour", wheel.colour, kColours);
  io("spokes", wheel.spokes, 1, 64);
  io.optional(wheel.width > 0, "width_m", wheel.width, 0, 1);
}

struct Cart {
  std::string name;
  Bytes load;
  std::vector<Wheel> wheels;
  std::vector<std::pair<std::string, std::string>> parts;
};
void fields(auto& io, Cart& cart) {
  io.schema("cart/1");
  io("name", cart.name, kNotEmpty);
  io("load_bytes", cart.load, 0);
  io("wheels", cart.wheels);
  io.require(cart.wheels.size() % 2 == 0, "wheels", "are not pairs", "an even number");
  io("parts", cart.parts);
}

namespace {

constexpr const char* kCart = R"({"schema":"cart/1","name":"a","load_bytes":7,"wheels":[{"colour":"blue","spokes":8},)"
                              R"({"colour":"red","spokes":9,"width_m":0.5}],"parts":{"axle":"steel"}})";

std::string refusal(std::string text, std::string_view what, std::string_view instead) {
  text.replace(text.find(what), what.size(), instead);
  Cart cart;
  try {
    read_fields(parse_json(text, "cart.json"), cart);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Fields, OneListReadsAndWrites) {
  Cart cart;
  read_fields(parse_json(kCart, "cart.json"), cart);
  EXPECT_EQ(cart.wheels[0].colour, Colour::kBlue);
  EXPECT_EQ(cart.wheels[1].width, 0.5);
  EXPECT_EQ(cart.load, Bytes(7));
  EXPECT_EQ(fields_json(cart).dump(), kCart);
}

TEST(Fields, WhatIsNotInTheListIsRefused) {
  EXPECT_NE(refusal(kCart, "\"spokes\":8", "\"spoke\":8").find("did you mean spokes"), std::string::npos);
  EXPECT_NE(refusal(kCart, "cart/1", "cart/2").find("unknown schema"), std::string::npos);
  EXPECT_NE(refusal(kCart, "\"name\":\"a\"", "\"name\":\"\"").find("is empty"), std::string::npos);
  EXPECT_NE(refusal(kCart, "9", "65").find("spokes"), std::string::npos);
  EXPECT_NE(refusal(kCart, "blue", "green").find("colour"), std::string::npos);
  EXPECT_NE(refusal(kCart, "{\"colour\":\"blue\",\"spokes\":8},", "").find("are not pairs"), std::string::npos);
}

}
}
