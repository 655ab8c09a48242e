//! Scratch.
use std::io::{Cursor,Read};
use contigua_frames::*;
fn main(){
    let a: Vec<String> = std::env::args().collect();
    let mut b=Vec::new(); std::fs::File::open(&a[1]).unwrap().read_to_end(&mut b).unwrap();
    let p = match a[2].as_str() {"linux"=>Placement::default(),"illuminator"=>Placement::Illuminator(Default::default()),_=>Placement::Contiguitas(Default::default())};
    let c=contigua_machine::requests::replay(Cursor::new(b),&p,&Config::default());
    match c { Ok(c)=>println!("{}",serde_json::to_string(&c).unwrap()), Err(e)=>{eprintln!("{e}");std::process::exit(1)} }
}
